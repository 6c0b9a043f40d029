"""Rows by their numbers: the TensorCore's ways against a table in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systolic.checking.interpreting import traced_as_on
from systolic.checking.running import run_checks
from systolic.chips import chip
from systolic.lessons.kernels.sparse_core import copy_rows, gather, take
from systolic.lessons.sparse_core import subcores


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fn", [take, copy_rows], ids=["take", "copy_rows"])
@pytest.mark.parametrize(
    "index",
    [
        np.arange(128, dtype=np.int32),
        np.random.default_rng(1).integers(0, 200, 384).astype(np.int32),
        np.full(128, 199, np.int32),
    ],
    ids=["in order", "drawn", "one row"],
)
def test_rows(fn, index: np.ndarray) -> None:
    table = jax.ShapeDtypeStruct((200, 128), jnp.float32)
    outcome = run_checks(fn, (table, index), chip=chip("v5e"), reference=lambda t, i: t[i], seeds=(0,))
    assert [each for each in outcome.findings if each.grade != "note"] == []
    assert outcome.summary.error == 0


def test_which_chips_have_sparse_cores() -> None:
    assert {name: subcores(chip(name)) > 0 for name in ("v5e", "v5p", "v6e", "v7x")} == {
        "v5e": False, "v5p": True, "v6e": True, "v7x": True,
    }  # fmt: skip
    args = (jax.ShapeDtypeStruct((512, 128), jnp.float32), jax.ShapeDtypeStruct((4096,), jnp.int32))
    with traced_as_on(chip("v5e")), pytest.raises(RuntimeError, match="does not have SparseCores"):
        jax.eval_shape(gather, *args)
