"""Rows of tokens and rows of experts: `combine` adds up the rows of each token."""
