"""Pallas kernels, one idea a file. `ops` chooses tiles and calls them."""

# Times of kernels are kept under this number: it is raised with every change by which a program takes another time.
# `tests/compiled/test_kernel_version.py` compares some programs with what they took under this version.
KERNEL_VERSION = 1
