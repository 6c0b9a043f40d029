"""The lessons' kernels: files on JAX and NumPy alone, to be read, pasted and changed."""
