"""`python -m rung` is `rung`."""

from rung.cli.main import command

command()
