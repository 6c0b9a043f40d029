"""Compare predicted times with published ones: errors, and constants fitted to one half and checked on the other."""
