"""Checks of functions that users pass to an op: a kernel may apply an elementwise function block by block."""
