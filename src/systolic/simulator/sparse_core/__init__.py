"""Run SparseCores: their own listings, their sequencers and tiles, and their launch by a TensorCore."""
