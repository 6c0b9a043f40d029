"""The model of a chip: values, memory, copies and flags, matrix units, and what is noted of them."""
