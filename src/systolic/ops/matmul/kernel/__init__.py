"""Pallas kernels of dense and gated products."""
