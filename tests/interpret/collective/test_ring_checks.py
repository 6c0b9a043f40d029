"""`systolic.check` on a mesh: our products across chips are clean, and faults planted in them are found."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import systolic
from systolic.ops.collective.kernel.walk import Walk

MESH = {"model": 4}


def product(x: Any, w: Any) -> Any:
    return jnp.matmul(x, w)


def gathered(x: Any, w: Any) -> Any:
    return _on_mesh(systolic.all_gather_matmul, (P("model"), P(None, "model")), P(None, "model"))(x, w)


def scattered(x: Any, w: Any) -> Any:
    return _on_mesh(systolic.matmul_reduce_scatter, (P(None, "model"), P("model")), P("model"))(x, w)


def _on_mesh(multiply: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    run = functools.partial(multiply, axis_name="model", implementation="pallas")
    return jax.shard_map(run, in_specs=in_specs, out_specs=out_specs, check_vma=False)


SHAPES = {scattered: ((128, 512), (512, 128)), gathered: ((128, 128), (128, 512))}


@contextlib.contextmanager
def planted(fault: str) -> Iterator[None]:
    """Put a fault into the kernels while they are traced."""
    copy_on = Walk.copy_on

    def misplaced(walk: Walk, source: Any, destination: Any, *rest: Any) -> Any:
        slot, direction, *block = destination.transforms[-1].indices
        if fault == "wrong slot":
            direction = 1 - direction
        else:  # the slot before may not have been sent on yet
            slot = slot - 1
        return copy_on(walk, source, destination.ref.at[slot, direction, *block[: destination.ref.ndim - 4]], *rest)

    faults = {"no barrier": ("barrier", lambda walk: None)}
    name, replaced = faults.get(fault, ("copy_on", misplaced))
    jax.clear_caches()  # the product may have been traced without the fault
    with mock.patch.object(Walk, name, replaced):
        yield
    jax.clear_caches()


def checked(fn: Callable[..., Any], shapes: Any, seeds: tuple[int, ...]) -> systolic.CheckReport:
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    return systolic.check(fn, *args, reference=product, mesh=MESH, chip="v6e", compiles=False, seeds=seeds)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fn", SHAPES)
def test_a_product_is_clean(fn: Callable[..., Any]) -> None:
    report = checked(fn, SHAPES[fn], (0,))
    assert report.ok
    assert report.run.ran
    assert report.run.error is not None  # no finding says that it is above its tolerance


@pytest.mark.slow
def test_a_product_with_a_quantized_weight_is_clean() -> None:
    def scaled(x: Any, w: systolic.Quantized) -> Any:
        return jnp.matmul(x, w.values * w.scales)  # in any dtype

    shapes = ((128, 128), "bfloat16"), ((128, 512), "int8"), ((1, 512), "float32")
    x, *w = (jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in shapes)
    options: dict[str, Any] = {"mesh": MESH, "chip": "v6e", "compiles": False, "seeds": (0,)}
    report = systolic.check(gathered, x, systolic.Quantized(*w), reference=scaled, **options)
    assert report.ok
    assert report.run.error is not None


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fn", "fault"),
    [
        (scattered, "no barrier"),
        (gathered, "early reuse"),
        pytest.param(scattered, "wrong slot", marks=pytest.mark.slow),
        pytest.param(gathered, "no barrier", marks=pytest.mark.slow),  # like its neighbours, and half a minute each
        pytest.param(gathered, "wrong slot", marks=pytest.mark.slow),
        pytest.param(scattered, "early reuse", marks=pytest.mark.slow),
    ],
)
def test_a_planted_fault_is_found(fn: Callable[..., Any], fault: str) -> None:
    def faulty(x: Any, w: Any) -> Any:
        with planted(fault):
            return fn(x, w)

    rules = {finding.rule for finding in checked(faulty, SHAPES[fn], (0,)).findings if finding.grade == "error"}
    assert "race" in rules
