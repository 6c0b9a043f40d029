"""Run the kernels of `kernels/first_matmul.py`, and report the results."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from systolic.chips import Chip
from systolic.lessons.kernels.first_matmul import first_matmul, identity
from systolic.lessons.lesson import Lesson
from systolic.spec import MatmulSpec


def lesson(chips: Sequence[Chip] = ()) -> Lesson:
    """Run 512³ in TPU interpret mode, plain and transposed, with and without relu, against float64."""
    del chips  # interpret mode is the same for every chip
    import numpy as np

    from systolic.bench.accuracy import Accuracy, max_abs_error, operands, reference, tolerance

    rows = []
    for dtype in ("float32", "bfloat16"):
        spec = MatmulSpec.of(512, 512, 512, dtype)
        lhs, rhs = operands(spec, seed=0)
        exact = reference(lhs, rhs)
        for transpose_rhs in (False, True):
            for name, activation, expected in (("none", identity, exact), ("relu", jax.nn.relu, np.maximum(exact, 0))):
                out = first_matmul(
                    jnp.asarray(lhs),
                    jnp.asarray(rhs.T if transpose_rhs else rhs),
                    transpose_rhs=transpose_rhs,
                    activation=activation,
                    interpret=pltpu.InterpretParams(),
                )
                # relu brings two numbers no further apart, so the product's tolerance holds for the whole.
                accuracy = Accuracy(
                    max_abs_error=max_abs_error(np.asarray(out), expected, spec), tolerance=tolerance(spec, 1)
                )
                rows.append(
                    {
                        "m": 512,
                        "k": 512,
                        "n": 512,
                        "dtype": dtype,
                        "tiles": "256/256/256",
                        "transpose_rhs": transpose_rhs,
                        "activation": name,
                        **accuracy.as_row(),
                    }
                )
    return Lesson(
        lines=(
            "One kernel body; the transpose of rhs and the activation are parameters of it.",
            "The transpose is an index map and a pair of contracted axes: nothing is copied.",
            "The activation sees the complete float32 sum in VMEM, before it is rounded.",
            "Run in TPU interpret mode on a CPU, which takes float32 in full; a TPU rounds such operands to bfloat16.",
        ),
        rows=tuple(rows),
        ok=all(row["ok"] for row in rows),
    )
