"""Functions that users hand to an op: whether they are elementwise, so that a kernel may apply them block by block."""
