"""A program that was read, as a Python function."""
