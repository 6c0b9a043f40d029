"""Many devices that execute one program together: their links, copies and signals."""
