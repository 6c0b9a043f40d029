"""Pallas kernels, one idea a file. `ops` chooses tiles and calls them."""

# Times of kernels are kept under this number: to be raised with every change that may change a program's time.
# `tests/unit/test_kernel_version.py` notices a change.
KERNEL_VERSION = 1
