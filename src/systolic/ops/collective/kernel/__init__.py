"""The Pallas kernels of products across chips, and the ring that they walk."""
