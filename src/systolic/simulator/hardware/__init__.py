"""The model of a chip: values, memory, copies and flags, matrix units, and records of their activity."""
