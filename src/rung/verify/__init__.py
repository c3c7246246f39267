"""Does a candidate compute what the untouched model computes? What is looked at, how far apart it may be, and the verdict."""
