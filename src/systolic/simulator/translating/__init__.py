"""Translate a program into a Python function."""
