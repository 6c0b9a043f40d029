"""The rules, by what they look at. Each returns every finding, and none executes or compiles the kernel."""
