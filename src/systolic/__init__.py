"""systolic: matrix multiplication on TPUs, and what a TPU kernel does, without a TPU."""

__version__ = "0.1.0"
