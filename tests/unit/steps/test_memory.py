"""Steps that do not fit HBM: the compiler's message, and changes that would make them fit."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import systolic
from systolic.compiler import CompilerRefusal
from systolic.simulator import HloShape, array_bytes
from systolic.steps import DoesNotFitError
from systolic.steps.memory import argument_bytes, refused_for_hbm
from systolic.steps.records import GIB

REFUSAL = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm. Exceeded by 4.25G."


def test_a_refusal_for_hbm_says_by_how_much() -> None:
    state = jax.ShapeDtypeStruct((1024, 2**20), jnp.float32)
    found = refused_for_hbm(CompilerRefusal.from_text(REFUSAL), (state,))
    assert found is not None
    assert (found.needed_bytes, found.available_bytes) == (20 * GIB, round(15.75 * GIB))
    assert found.argument_bytes == 4 * GIB
    assert "by 4.25 GiB" in str(found)
    assert f"{(15.75 - 4) / (20 - 4):.0%}" in found.advice
    assert str(pickle.loads(pickle.dumps(found))) == str(found)


def test_a_state_that_is_too_large_by_itself_has_to_be_cut() -> None:
    assert "3 times as many" in DoesNotFitError(50 * GIB, 16 * GIB, 40 * GIB).advice


@pytest.mark.parametrize("text", ["Used 20.00M of 16.00M vmem", "INTERNAL: something else about hbm"])
def test_other_refusals_are_not_about_hbm(text: str) -> None:
    assert refused_for_hbm(CompilerRefusal.from_text(text), ()) is None


def test_arguments_count_by_their_parts() -> None:
    mesh = systolic.slice_mesh("v6e", "2x2", fsdp=4)
    cut = jax.ShapeDtypeStruct((8, 128), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec("fsdp")))
    assert argument_bytes(({"weight": cut}, jax.ShapeDtypeStruct((3,), jnp.int32))) == 2 * 128 * 2 + 12


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (HloShape(dtype="f32", sizes=(3, 130), layout="1,0:T(8,128)"), 8 * 256 * 4),
        (HloShape(dtype="bf16", sizes=(130, 3), layout="0,1:T(8,128)(2,1)"), 256 * 8 * 2),
        (HloShape(dtype="s32", sizes=(), layout=":T(128)"), 4),
        (HloShape(dtype="pred", sizes=(5,), layout=""), 5),
        (HloShape(dtype="f8e4m3fn", sizes=(5,), layout="0"), 5),
    ],
)
def test_bytes_of_arrays_with_their_padding(shape: HloShape, size: int) -> None:
    assert array_bytes(shape) == size
