"""Scripts on a slice: their devices, meshes and shardings here, and what a compiler's worker gets in their place."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest
from virtual_devices import run_on_virtual_devices

from systolic import chip
from systolic.chips import SliceError
from systolic.running import HostSlice

SCRIPT = """
import functools, sys
from concurrent.futures import Future

import jax, jax.numpy as jnp, numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import systolic
from systolic.compiler import PlacedArray, StandInDevice
from systolic.compiler.pickling import dumps
from systolic.running import HostSlice, Recording

values = sys.argv[1] == "values"


class Pool:
    def __init__(self):
        self.sent = {}

    def submit(self, task, step, name, chip, shape, *rest, label):
        assert b"_device_here" in dumps(step) or shape is None  # a worker makes its own devices of them
        self.sent[name.partition("(")[0]] = (step, shape and shape.name)
        job = Future()
        job.set_exception(TimeoutError("not compiled"))
        return job


pool, slice_of_four = Pool(), HostSlice.of(systolic.chip("v6e"), "2x2")
recording = Recording(pool, systolic.chip("v6e"), values=values, host_slice=slice_of_four)
assert jax.device_count() == 5
with recording.active():
    assert jax.device_count() == len(jax.devices()) == jax.local_device_count() == 4
    mesh = jax.make_mesh((4,), ("model",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P("model"))
    there = systolic.slice_mesh("v6e", "2x2", model=4)
    assert [slice_of_four.stand_ins[device] for device in mesh.devices] == list(there.devices)
    assert list(mesh_utils.create_device_mesh((4,))) == list(mesh.devices)
    assert len(jax.make_mesh((2,), ("model",)).devices) == 2

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P(None, "model")), donate_argnums=0)
    def by_arguments(x, index):
        return jax.lax.with_sharding_constraint(x[index], sharding)

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("model"), out_specs=P())
    def by_shard_map(x):
        return jax.lax.psum(x, "model")

    @jax.jit
    def by_results(key):
        return jax.lax.with_sharding_constraint(jax.random.normal(key, (8, 8)), sharding)

    @jax.jit
    def on_one(x):
        return x + 1

    @jax.jit
    def by_set_mesh(x):
        return x * 2

    x = jax.device_put(jnp.ones((8, 8)), sharding)
    index = jax.device_put(jnp.arange(8), sharding)
    y = by_arguments(x, index)
    assert x.is_deleted() and y.sharding.spec == P(None, "model") and y.shape == (8, 8)
    assert bool(y.any()) == values
    total = by_shard_map(jnp.ones(4))
    assert total.shape == (1,) and len(total.devices()) == 4 and bool((total == 4).all()) == values
    assert by_results(jax.random.key(0)).sharding.is_equivalent_to(sharding, 2)
    assert len(on_one(jnp.ones(8)).devices()) == 1
    by_arguments(jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P())), index)
    explicit = jax.make_mesh((4,), ("model",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(explicit):
        assert by_set_mesh(jax.device_put(jnp.ones(8), P("model"))).shape == (8,)

calls = {f"{program.name}({program.arguments})": program.calls for program in recording.result().programs}
assert calls["by_arguments(f32[8,8]@model, s32[8]@model)"] == calls["by_arguments(f32[8,8], s32[8]@model)"] == 1, calls
step, topology = pool.sent["by_arguments"]
kept = step.args[1]
assert topology == "2x2" and isinstance(kept, PlacedArray) and list(kept.value) == list(range(8))
assert step.fn.options.donated == (0,)
there_too = [step.args[0].sharding, kept.sharding, step.fn.options.out_shardings]
assert all(isinstance(device, StandInDevice) for sharding in there_too for device in sharding.mesh.devices.flat)
assert pool.sent["by_shard_map"][1] == pool.sent["by_results"][1] == "2x2"
assert pool.sent["on_one"][1] is None
on_mesh, topology = pool.sent["by_set_mesh"]
assert isinstance(on_mesh.mesh.devices.flat[0], StandInDevice) and on_mesh.mesh.axis_types == (AxisType.Explicit,)
assert recording.result().topology == "2x2"
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("values", ["values", "zeros"])
def test_a_sharded_call_is_sent_with_the_devices_of_the_slice(values: str, tmp_path: Path) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, values)


def test_jax_has_started_with_fewer_devices_than_the_slice() -> None:
    jax.devices()
    with pytest.raises(SliceError, match=r"2x4 of v6e has 8 devices, and JAX has started with 1: .*_devices', 9\)"):
        HostSlice.of(chip("v6e"), "2x4")
    with pytest.raises(SliceError, match="no slice 3x3"):
        HostSlice.of(chip("v6e"), "3x3")
