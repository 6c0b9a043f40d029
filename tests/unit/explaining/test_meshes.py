"""Other meshes and shardings of the same function: which there are, and that the call is changed everywhere."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from systolic.chips import SliceShape, chip
from systolic.compiler import slice_mesh, with_jit_options
from systolic.explaining.meshes import device_order, mesh_candidates, only_mesh

V6E = SliceShape.parse(chip("v6e"), "2x4")


def product(x, w):
    return x @ w


def arguments(mesh):
    rows, columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data", None), (None, "model")))
    return (
        jax.ShapeDtypeStruct((64, 128), jnp.bfloat16, sharding=rows),
        {"w": jax.ShapeDtypeStruct((128, 256), jnp.bfloat16, sharding=columns)},
    )


def meshes(fn, args) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shapes and devices of all meshes that a call names."""
    leaves = [leaf.sharding for leaf in jax.tree.leaves(args)]
    options = getattr(fn, "options", None)
    if options is not None:
        leaves += jax.tree.leaves((options.in_shardings, options.out_shardings))
        leaves += [NamedSharding(options.mesh, PartitionSpec())] if options.mesh is not None else []
    return {(tuple(s.mesh.devices.shape), tuple(d.id for d in s.mesh.devices.flat)) for s in leaves}


@pytest.mark.parametrize("name", ["v6e 2x4", "v6e 4x4", "v5p 2x2x2", "v7x 2x2x1"])
def test_back_and_forth_every_chip_is_next_to_the_one_before(name: str) -> None:
    generation, extents = name.split()
    shape = SliceShape.parse(chip(generation), extents)
    axes = tuple(range(len(shape.extents)))
    for order in (axes, axes[::-1]):
        for forth in (False, True):
            ids = device_order(shape, order, back_and_forth=forth)
            assert sorted(ids) == [device.id for device in shape.devices]
            places = [shape.device(number).coords for number in ids]
            hops = [sum(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in itertools.pairwise(places)]
            assert max(hops) == 1 if forth else max(hops) > 1
            # The axis in front is gone along first.
            moved = next(at for at in range(1, len(ids)) if places[at] != places[0])
            differs = [axis for axis in axes if places[moved][axis] != places[0][axis]]
            assert differs == [next(axis for axis in order if shape.extents[axis] > 1)]


def test_along_y_back_and_forth_is_the_ring_of_a_2x4_slice() -> None:
    ids = device_order(V6E, (1, 0), back_and_forth=True)
    assert ids == (0, 2, 4, 6, 7, 5, 3, 1)
    assert V6E.device(ids[0]).coords[0] + 1 == V6E.device(ids[-1]).coords[0]  # it closes


def test_sizes_orders_and_specs_in_turn() -> None:
    mesh = slice_mesh("v6e", "2x4", data=2, model=4)
    found = mesh_candidates(product, arguments(mesh), V6E)
    titles = [each.candidate.title for each in found]
    assert len(set(titles)) == len(titles)
    assert [title.split()[0] for title in titles[:3]] == ["mesh", "devices", "argument"]
    assert {"mesh data=8,model=1", "mesh data=4,model=2", "mesh data=1,model=8"} <= set(titles)
    assert {"argument 1 sharded @-,data", "argument 1 sharded @-,-", "argument 2 sharded @model,-"} <= set(titles)
    assert titles[1] == "devices along y, then x, back and forth"  # a ring of neighbours
    gathered = next(each.candidate for each in found if each.candidate.title == "argument 1 sharded @-,-")
    assert gathered.why == "each device then holds 0.02 MB of it in place of 0.01 MB"
    before = (tuple(mesh.devices.shape), tuple(device.id for device in mesh.devices.flat))
    for each in found:
        kind = each.candidate.title.split()[0]
        named = meshes(each.fn, each.args)
        assert len(named) == 1
        specs = [leaf.sharding.spec for leaf in jax.tree.leaves(each.args)]
        same = specs == [leaf.sharding.spec for leaf in jax.tree.leaves(arguments(mesh))]
        assert (named == {before}, same) == ((True, False) if kind == "argument" else (False, True))
        for leaf in jax.tree.leaves(each.args):
            leaf.sharding.shard_shape(leaf.shape)  # raises where it does not divide


def test_shardings_of_a_jit_are_changed_as_well() -> None:
    mesh = slice_mesh("v6e", "2x4", data=2, model=4)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    fn = with_jit_options(jax.jit(product, in_shardings=(rows, None), out_shardings=rows), mesh)
    for each in mesh_candidates(fn, arguments(mesh)[:1], V6E):
        assert len(meshes(each.fn, each.args)) == 1
        assert each.fn.options.in_shardings[1] is None


def test_a_size_that_does_not_cut_an_argument_evenly_is_left_out() -> None:
    mesh = slice_mesh("v6e", "2x4", data=2, model=4)
    thin = jax.ShapeDtypeStruct((4, 6), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data", None)))
    titles = {each.candidate.title for each in mesh_candidates(jnp.sin, (thin,), V6E)}
    assert "mesh data=4,model=2" in titles
    assert "mesh data=8,model=1" not in titles
    assert "argument 1 sharded @-,data" in titles
    thinner = jax.ShapeDtypeStruct((4, 7), jnp.float32, sharding=thin.sharding)
    titles = {each.candidate.title for each in mesh_candidates(jnp.sin, (thinner,), V6E)}
    assert "argument 1 sharded @-,data" not in titles


def test_two_axes_of_one_dimension() -> None:
    mesh = slice_mesh("v6e", "2x4", data=2, model=4)
    both = PartitionSpec(("data", "model"), None)
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, both))
    titles = {each.candidate.title for each in mesh_candidates(jnp.sin, (x,), V6E)}
    assert {"argument 1 sharded @model,data", "argument 1 sharded @model,-"} <= titles


def test_a_call_without_a_mesh_or_with_two() -> None:
    bare = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    assert mesh_candidates(jnp.sin, (bare, np.zeros(3)), V6E) == []
    one, other = slice_mesh("v6e", "2x4", data=2, model=4), slice_mesh("v6e", "2x4", data=4, model=2)
    args = arguments(one)[:1] + arguments(other)[:1]
    assert only_mesh(product, args) is None
    assert mesh_candidates(product, args, V6E) == []
