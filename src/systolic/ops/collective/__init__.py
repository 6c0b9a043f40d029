"""Products across the chips of a slice: so far only the kernel of all-gather × matmul, without a public function."""
