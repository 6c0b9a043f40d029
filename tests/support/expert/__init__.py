"""A second op, made as CONTRIBUTING says: one expert's gated product, in one folder, which needs no change in systolic.

    out[m, n] = relu(lhs @ gate[expert]) · (lhs @ up[expert])

It has what the matmul has not: two right-hand sides, an operand that is prefetched, and on a slice communication: each
device has some columns of the weights, and gathers those of the result from the others.
"""
