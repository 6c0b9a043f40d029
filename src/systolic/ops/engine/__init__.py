"""Code that all ops share: batching, meshes, the choice of a backend, and linear derivatives."""
