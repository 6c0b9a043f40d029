"""Kernels of `benchmarks/checked/`: faults that only harder inputs, unkind memory or windows that change can show."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from check_runs import array, errors, ran
from checked import carried, copies, products, rows
from checked.case import Case

CASES = {case.name: case for module in (products, rows, copies, carried) for case in (*module.FAULTS, *module.SOUND)}
# One for each way of finding that is not tried elsewhere.
SHOWN = {
    "softmax: without its maximum, no reference": {"nan"},
    "variance: by cancellation": {"wrong-result"},
    "columns_summed: positives counted behind the end": {"uninitialised"},
    "relu: stored under a condition on data, no reference": {"nan"},
    "integers_summed: in 16 bits": {"wrong-result"},
    "in_output: cleared by the first block only, no reference": {"nan"},
    "pipelined_product: the sum comes back, no reference": {"revisited-output"},
    "updated: reads the block before, no reference": {"order"},
}
QUIET = ("logarithm no reference", "doubled int8", "in_place no reference", "overwritten_blocks no reference")


def run(case: Case) -> set[str]:
    return {found.rule for found in errors(ran(case.fn, *case.args, reference=case.reference, seeds=(0,)))}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SHOWN)
def test_a_fault_is_shown_by_the_run(name: str) -> None:
    assert run(CASES[name]) & SHOWN[name]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", QUIET)
def test_a_sound_kernel_is_not_accused(name: str) -> None:
    assert not run(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.rules])
def test_no_sound_kernel_is_accused(name: str) -> None:
    assert not run(CASES[name])


@pytest.mark.exhaustive
def test_what_scratch_memory_carries_on_is_a_warning() -> None:
    case = CASES["scratch_product: cleared for the first block alone, no reference"]
    found = {each.rule: each.grade for each in ran(case.fn, *case.args, seeds=(0,)).findings}
    assert found["uninitialised"] == "warning"
    meant = ran(carried.running_sum, carried.X, reference=carried.running_plain, seeds=(0,))
    assert "uninitialised" not in {each.rule for each in meant.findings}  # a reference shows that it is right


def test_what_the_inputs_were_is_said() -> None:
    outcome = ran(rows.relu, array(16, 128), reference=rows.relu_plain, seeds=(0,))
    assert outcome.summary.data == ("normal", "large", "offset", "negative", "repeated")
    # After an error there is nothing to be learned from harder ones.
    case = CASES["halves: the second never written, no reference"]
    assert ran(case.fn, *case.args, seeds=(0,)).summary.data == ("normal",)


@pytest.mark.exhaustive
def test_without_a_reference_a_likely_one_is_named() -> None:
    (found,) = (each for each in ran(copies.doubled_by_copies, array(32, 128), seeds=(0,)).findings)
    assert (found.rule, found.grade) == ("reference", "note")
    copied = ran(copies.waits, array(32, 128), seeds=(0,)).findings
    assert [each.grade for each in copied if "those of x" in each.value] == ["note"]
    # Three of four blocks are where they have to be.
    swapped = ran(lambda x: copies.waits(x).at[:8].set(0), array(32, 128), seeds=(0,)).findings
    assert [each.grade for each in swapped if "rows 0..7 of 32" in each.value] == ["warning"]


def test_keys_for_random_numbers_are_made_up() -> None:
    def noisy(key: jax.Array, x: jax.Array) -> jax.Array:
        return copies.waits(x + jax.random.normal(key, x.shape))

    def plain(key: jax.Array, x: jax.Array) -> jax.Array:
        return x + jax.random.normal(key, x.shape, jnp.float32)

    key = jax.eval_shape(lambda: jax.random.key(0))
    outcome = ran(noisy, key, array(32, 128), reference=plain, seeds=(0,))
    assert not errors(outcome)
    assert outcome.summary.error is not None
    assert outcome.summary.sizes[0].startswith("key")


def test_a_function_needs_no_arguments() -> None:
    assert not errors(ran(lambda: copies.waits(jnp.ones((32, 128))), reference=lambda: jnp.ones((32, 128)), seeds=(0,)))
