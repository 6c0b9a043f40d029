"""Rows of tokens and of experts: `spread` puts copies in the order of experts, `combine` adds up rows of a token."""
