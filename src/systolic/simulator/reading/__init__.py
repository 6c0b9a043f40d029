"""What the compiler left behind, read: listings, their blocks, copies and calls, the HLO, the table of units."""
