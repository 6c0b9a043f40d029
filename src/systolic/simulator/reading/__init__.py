"""Read the compiler's output: listings, their blocks, copies and calls, the HLO, the table of units."""
