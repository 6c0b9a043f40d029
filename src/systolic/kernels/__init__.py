"""Pallas kernels, one idea a file. `ops` chooses tiles and calls them."""
