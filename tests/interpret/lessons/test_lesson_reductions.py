"""The sums of the lesson on reductions, at small sizes, against float64, on one core and on two."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from systolic.checking.running import RunOutcome, run_checks
from systolic.chips import chip
from systolic.lessons.kernels.reductions import naive_sum_kernel, sum_axis_first, sum_blocks, sum_whole


def checked(fn: Callable[..., jax.Array], *shape: int, on: str = "v5e") -> RunOutcome:
    args = [jax.ShapeDtypeStruct(shape, jnp.float32)]
    return run_checks(fn, args, chip=chip(on), reference=lambda x: x.sum(axis=0), seeds=(0,))


def errors(outcome: RunOutcome) -> set[str]:
    return {each.rule for each in outcome.findings if each.grade == "error"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("on", ["v5e", "v5p"])
@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (sum_whole, (1, 8, 128)),
        (sum_whole, (5, 24, 100)),
        (functools.partial(sum_blocks, bm=8, bn=128), (1, 8, 128)),
        (functools.partial(sum_blocks, bm=8, bn=128), (3, 24, 256)),
        (functools.partial(sum_blocks, bm=16, bn=100), (2, 48, 100)),
    ],
)
def test_sums(fn: Callable[..., jax.Array], shape: tuple[int, ...], on: str) -> None:
    outcome = checked(fn, *shape, on=on)
    assert [each for each in outcome.findings if each.grade != "note"] == []
    assert outcome.summary.error is not None
    assert outcome.summary.tolerance is not None
    assert outcome.summary.error <= outcome.summary.tolerance


def test_a_block_that_is_not_cleared_holds_what_was_there() -> None:
    assert errors(checked(functools.partial(sum_whole, kernel=naive_sum_kernel), 3, 16, 128)) == {"nan"}


def test_a_block_that_is_left_does_not_come_back() -> None:
    assert errors(checked(functools.partial(sum_axis_first, bm=8, bn=128), 3, 16, 256)) == {"revisited-output"}


@pytest.mark.parametrize("on", ["v5e", "v5p"])
def test_the_summed_axis_is_in_no_other_order(on: str) -> None:
    shared = functools.partial(sum_blocks, bm=8, bn=128, semantics=("parallel", "parallel", "parallel"))
    assert "wrong-result" in errors(checked(shared, 4, 16, 256, on=on))
