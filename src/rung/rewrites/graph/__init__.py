"""What every pass reads of a graph: operations behind their spellings, what writes and what shares memory, what is constant, which layout is asked for."""
