"""What is shown: reads the results of a run and computes nothing. jinja2 loads only when used."""
