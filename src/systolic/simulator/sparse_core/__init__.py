"""Runs what SparseCores do: their own listings, their sequencers and tiles, and how a TensorCore starts them."""
