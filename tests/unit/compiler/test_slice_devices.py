"""Devices and meshes of slices that are not there, and calls that are sharded over them."""

from __future__ import annotations

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from systolic import slice_devices, slice_mesh
from systolic.chips import CHIPS, Chip, SliceError, SliceShape, chip
from systolic.compiler import abstract_arguments, argument_values, check_sharded_call, topology_of, with_jit_options
from systolic.compiler.arguments import PlacedArray
from systolic.compiler.jit_options import without_jit_options
from systolic.compiler.pickling import dumps


def sharded(mesh: Mesh, *axes: str | None, shape: tuple[int, ...] = (16, 32)) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(*axes)))


# --- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", CHIPS.values(), ids=CHIPS)
def test_devices_are_those_of_the_slice(known: Chip) -> None:
    assert known.links is not None
    topology = "x".join(["2", "4", "4"][: known.links.dimensions])
    shape = SliceShape.parse(known, topology)
    devices = slice_devices(known, topology)
    assert sorted(device.id for device in devices) == [each.id for each in shape.devices]
    for device in devices:
        its = shape.device(device.id)
        assert (device.coords, device.core_on_chip) == ((*its.coords, 0)[:3], its.core)
        assert (device.device_kind, device.num_cores) == (known.device_kind, known.cores_per_device)


def test_hosts_come_one_after_the_other() -> None:
    # As libtpu lists them: hosts of 2 × 2 chips.
    assert [device.id for device in slice_devices("v6e", "4x4")[:8]] == [0, 1, 4, 5, 2, 3, 6, 7]
    assert [device.id for device in slice_devices("v7x", "2x2x1")] == list(range(8))


def test_a_mesh_has_the_order_of_jax_make_mesh() -> None:
    mesh = slice_mesh("v6e", "2x4", data=2, model=4)
    assert dict(mesh.shape) == {"data": 2, "model": 4}
    made = jax.make_mesh((2, 4), ("data", "model"), devices=slice_devices("v6e", "2x4"))
    assert [device.id for device in mesh.devices.flat] == [device.id for device in made.devices.flat]
    assert mesh.devices.size == len({device.id for device in mesh.devices.flat}) == 8
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


def test_an_axis_may_take_part_of_an_axis_of_the_slice() -> None:
    mesh = slice_mesh("v5p", "4x4x4", data=2, model=32)
    assert dict(mesh.shape) == {"data": 2, "model": 32}
    assert {device.id for device in mesh.devices.flat} == set(range(64))


def test_meshes_are_equal_after_a_journey() -> None:
    mesh = slice_mesh("v6e", "2x4", ring=8)
    spec = NamedSharding(mesh, PartitionSpec("ring"))
    assert pickle.loads(dumps(spec)) == spec
    assert slice_mesh("v6e", "2x4", ring=8) is mesh


@pytest.mark.parametrize(
    ("name", "topology", "axes"),
    [
        ("v6e", "2x4", {"data": 4, "model": 4}),  # more devices than the slice
        ("v6e", "2x4", {"data": 2, "model": 2}),  # and fewer
        ("v6e", "2x4", {}),
        ("v6e", "2x4", {"data": 0, "model": 8}),
        ("v6e", "2x2x2", {"data": 8}),  # three dimensions, where there are two
        ("v5p", "2x4", {"data": 8}),
        ("v6e", "3x4", {"data": 12}),  # half a host
        ("v6e", "two", {"data": 2}),
    ],
)
def test_meshes_that_are_none_of_a_slice(name: str, topology: str, axes: dict[str, int]) -> None:
    with pytest.raises(SliceError) as caught:
        slice_mesh(name, topology, **axes)
    assert "\n" not in str(caught.value)
    assert topology in str(caught.value) or str(math.prod(axes.values())) in str(caught.value)


# --- calls -----------------------------------------------------------------------------------------------------------


def topology(name: str = "v6e", text: str = "2x4"):
    return topology_of(SliceShape.parse(chip(name), text))


def test_a_call_on_its_own_slice() -> None:
    mesh = slice_mesh("v6e", "2x4", data=2, model=4)
    x = sharded(mesh, "data", "model")
    check_sharded_call(jnp.matmul, (x, np.zeros((32, 4))), topology())
    check_sharded_call(jax.jit(jnp.matmul, in_shardings=(x.sharding, x.sharding)), (), topology())


def test_a_call_without_its_slice_or_on_another() -> None:
    x = sharded(slice_mesh("v6e", "2x4", ring=8), "ring")
    with pytest.raises(SliceError, match="topology='2x4'"):
        check_sharded_call(jnp.sin, (x,), None)
    with pytest.raises(SliceError, match="v6e:2x4; the slice is v6e:4x4"):
        check_sharded_call(jnp.sin, (x,), topology(text="4x4"))
    with pytest.raises(SliceError, match="out_shardings"):
        check_sharded_call(jax.jit(jnp.sin, out_shardings=x.sharding), (), topology("v5e"))


def test_a_call_over_devices_of_this_process() -> None:
    here = Mesh(np.asarray(jax.devices()[:1]), ("data",))
    with pytest.raises(SliceError, match=r"cpu.*slice_mesh"):
        check_sharded_call(jnp.sin, (sharded(here, "data"),), topology())
    check_sharded_call(jnp.sin, (sharded(here, "data"), jnp.ones(3)), None)


def test_shardings_stay_with_arguments_and_functions() -> None:
    mesh = slice_mesh("v6e", "2x4", data=2, model=4)
    x, rows = sharded(mesh, "data"), NamedSharding(mesh, PartitionSpec("data"))
    placed = PlacedArray(np.arange(4, dtype=np.int32), rows)
    shapes = abstract_arguments(({"x": x}, placed, 3.0), shardings=True)
    assert [leaf.sharding for leaf in jax.tree.leaves(shapes)] == [x.sharding, rows, None]
    assert [leaf.sharding for leaf in jax.tree.leaves(abstract_arguments((x, placed)))] == [None, None]
    (known,) = argument_values((placed,))
    np.testing.assert_array_equal(known, np.arange(4))

    jitted = jax.jit(jnp.matmul, in_shardings=(rows, None), out_shardings=rows, donate_argnums=0)
    _, options = without_jit_options(with_jit_options(jitted, mesh))
    assert (options.donated, options.out_shardings, options.mesh) == ((0,), rows, mesh)
    assert options.in_shardings[0] == rows
    assert without_jit_options(jax.jit(jnp.matmul))[1].shardings == {}
