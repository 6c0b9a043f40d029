"""The Pallas kernel of a ragged all-to-all, and its sender."""
