"""Whether a kernel is legal, right, free of races and accepted by the compiler."""
