"""The rules, by subject. Each returns all its findings, without executing or compiling the kernel."""
