"""`systolic.matmul`: its call, its derivatives, the plan of its kernel, and XLA's product in its place."""
