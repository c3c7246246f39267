"""A job that trains, watched while it runs: its ranks write lines into a folder (`sampler.py`), and `rung watch` says what they mean (`judge.py`)."""
