"""Kernels on a ring: products while tokens arrive, and sums of experts' rows that are sent while others are made."""
