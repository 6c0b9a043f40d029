"""Replace products in a user's JAX function by this package's kernels if these are known to be faster."""
