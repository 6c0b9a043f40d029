"""JAX's primitives by their effect on places of elements. A primitive that is in no list here is unknown.

The names are from jax 0.10.2 to 0.12; some exist only in some of these versions.
"""

from __future__ import annotations

# Each element of a result is made of the operands' elements at its place; operands without dimensions are scalars.
ELEMENTWISE = frozenset({
    # arithmetic
    "abs", "add", "add_any", "cbrt", "ceil", "clamp", "div", "floor", "integer_pow", "max", "min", "mul", "mulhi",
    "neg", "nextafter", "one_minus_square", "polynomial", "pow", "reduce_precision", "rem", "round", "rsqrt", "sign",
    "sqrt", "square", "sub",
    # functions
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e", "bessel_i1e", "cos", "cosh", "digamma",
    "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "igamma", "igamma_grad_a", "igammac", "lgamma", "log", "log1p",
    "log2", "logistic", "polygamma", "regularized_incomplete_beta", "sin", "sinh", "tan", "tanh", "zeta",
    # comparisons, choices, bits
    "and", "clz", "eq", "eq_to", "ge", "gt", "is_finite", "le", "le_to", "lt", "lt_to", "ne", "not", "or",
    "population_count", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "xor",
    # other dtypes; a bitcast to another width has another number of dimensions, and is refused for that
    "bitcast_convert_type", "complex", "conj", "convert_element_type", "imag", "real",
    # nothing at all
    "copy", "copy_p", "name", "pvary", "stop_gradient",
})  # fmt: skip
# Primitives that work along some dimensions, which they drop,
REDUCTIONS = frozenset({
    "argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    "reduce_xor", "unstack",
})  # fmt: skip
# keep, or make.
WITHIN = frozenset({
    "concatenate", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "pad", "rev", "slice", "sort", "split",
    "stack",
})  # fmt: skip
# Primitives that mix everything: only constants may go through.
OF_CONSTANTS = frozenset({"dot_general", "dynamic_slice", "gather", "iota"})
