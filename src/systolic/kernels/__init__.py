"""Pallas kernels, one idea a file. `ops` chooses tiles and calls them."""

# Times of kernels are stored under this number: raise it with every change that alters the time of a program.
# `tests/compiled/test_kernel_version.py` compares some programs with their cycles under this version.
KERNEL_VERSION = 1
