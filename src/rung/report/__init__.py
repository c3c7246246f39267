"""What is shown: reads the results of a run and computes nothing. rich and jinja2 load only when used."""
