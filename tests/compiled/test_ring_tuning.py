"""Products across chips are tuned on a slice, and traced with the winner on a mesh over such a slice."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import systolic
from systolic.ops.collective.sizes import RingSizes, WeightSizes
from systolic.ops.collective.slices import ring_slice
from systolic.ops.op import op_of
from systolic.store import Subject, Trial, TrialStore

SHARED: dict[str, Any] = {"devices": 4, "dtype": "bfloat16", "dtype_out": "bfloat16"}
SHARED["slice_mesh"] = ring_slice("2x2", 4)
GATHER = RingSizes(rows=64, k=256, columns=512, scatters=False, **SHARED)


@pytest.mark.parametrize(
    "sizes",
    [
        GATHER,
        pytest.param(
            dataclasses.replace(GATHER, scatters=True, weights=2, transpose_rhs=True), marks=pytest.mark.exhaustive
        ),
        pytest.param(dataclasses.replace(GATHER, weights=2, outs=3), marks=pytest.mark.exhaustive),
        pytest.param(WeightSizes(rows=64, k=256, columns=512, cut="n", **SHARED), marks=pytest.mark.exhaustive),
    ],
)
def test_a_product_is_tuned_on_a_slice(sizes: Any, tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    result = systolic.tune(sizes, "v6e", trials=2, workers=1, xla_default_flags=True, store=store)
    assert [trial.status for trial in result.trials] == ["ok"] * 2
    assert result.xla is not None
    assert result.xla.time_us is not None
    assert result.winner is not None
    with systolic.use(store=store):
        plan = systolic.plan(sizes, "v6e")
    assert (plan.config, plan.time_us) == (result.winner.config, result.winner.time_us)


def test_the_winner_is_traced_on_its_slice_alone(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    usual, other = (candidate.config for candidate in op_of(GATHER).search(GATHER, systolic.chip("v6e"))[1][:2])
    store.keep(Subject.here(GATHER, "v6e"), Trial(config=other, status="ok", simulated_us=100.0))
    multiply = functools.partial(systolic.all_gather_matmul, axis_name="model", implementation="pallas", chip="v6e")

    def traced(topology: str, **axes: int) -> str:
        mesh = systolic.slice_mesh("v6e", topology, **axes)
        x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((64, 256), (256, 512)))
        with jax.set_mesh(mesh):
            run = jax.shard_map(multiply, in_specs=(P(), P()), out_specs=P(), check_vma=False)
            return str(jax.make_jaxpr(run)(x, w))

    def with_store(topology: str, **axes: int) -> str:
        with systolic.use(store=store):
            return traced(topology, **axes)

    assert usual != other
    assert with_store("2x2", model=4) != traced("2x2", model=4)
    assert with_store("2x4", data=2, model=4) == traced("2x4", data=2, model=4)
