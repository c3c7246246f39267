"""What a trace means: one question a file, tables in, tables out. Prints nothing, plots nothing."""
