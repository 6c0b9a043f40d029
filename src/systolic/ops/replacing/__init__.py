"""Products of somebody's JAX function by this package's kernels, where that is known to gain."""
