"""Contents of operands of Pallas calls on one device of a mesh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from systolic import slice_mesh, typical
from systolic.compiler import Deferred, Missing, device_executions, pallas_operands
from systolic.compiler.deferred import applied, known_or

MESH = slice_mesh("v6e", "2x4", data=2, model=4)
SIZES = np.arange(16, dtype=np.int32)
SHAPE = jax.ShapeDtypeStruct((8, 16), jnp.float32)


def kernel(*refs) -> None:
    refs[-1][...] = refs[0][...]


def copied(*operands):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(operands[0].shape, operands[0].dtype))(*operands)


def operands(fn, *args: object, partition: int) -> list[object]:
    """Return the contents of the operands of the only call in a function of shards."""
    shapes = [jax.ShapeDtypeStruct(np.shape(each), each.dtype) for each in args]  # type: ignore[attr-defined]
    names = [f"x{number}" for number in range(len(args))]
    (found,) = pallas_operands(jax.make_jaxpr(fn)(*shapes), args, names, partition=partition)
    return [operand.get() for operand in found.operands]


def sharded(fn, *specs: P, out: P):
    return jax.shard_map(fn, mesh=MESH, in_specs=specs, out_specs=out, check_vma=False)


@pytest.mark.parametrize("partition", [0, 3, 6])
def test_a_device_has_its_part(partition: int) -> None:
    data, model = divmod(partition, 4)
    fn = sharded(copied, P(("model", "data")), out=P(("model", "data")))
    (found,) = operands(fn, SIZES, partition=partition)
    start = (model * 2 + data) * 2
    np.testing.assert_array_equal(found, SIZES[start : start + 2])


@pytest.mark.parametrize("partition", [0, 5])
def test_a_device_knows_where_it_is(partition: int) -> None:
    def body(sizes):
        place = jax.jit(lambda: lax.axis_index("model"))()
        return copied(sizes + place, jnp.reshape(lax.axis_index(("data", "model")), (1,)))

    shifted, place = operands(sharded(body, P(), out=P("model")), SIZES, partition=partition)
    np.testing.assert_array_equal(shifted, SIZES + partition % 4)
    np.testing.assert_array_equal(place, [partition])


def test_what_others_hold_is_missing() -> None:
    def body(sizes):
        return copied(lax.psum(sizes, "model"), sizes)

    summed, own = operands(sharded(body, P("model"), out=P("model")), SIZES, partition=1)
    assert isinstance(summed, Missing)
    assert "psum" in summed.why
    np.testing.assert_array_equal(own, SIZES[4:8])


def test_offsets_that_devices_tell_each_other_are_known() -> None:
    def body(sizes):
        begins = jnp.cumsum(sizes) - sizes
        arrived = lax.all_to_all(begins, "model", 0, 0, tiled=True)
        back = lax.all_to_all(arrived, "model", 0, 0, tiled=True)  # needs what the others got
        stacked = lax.all_to_all(begins.reshape(4, 1), "model", 0, 0)
        return copied(arrived, back, stacked, lax.all_gather(begins[:2], "model"), lax.psum(begins, "model"))

    table = np.random.default_rng(0).integers(0, 9, (8, 4)).astype(np.int32)  # of all devices
    cut = P(("data", "model"))
    *known, summed = operands(sharded(body, cut, out=cut), table.reshape(-1), partition=6)
    begins = (np.cumsum(table, 1) - table)[4:]  # of the devices with the same place along "data"
    expected = begins[:, 2], begins[2], begins[:, 2:3], begins[:, :2]
    for ours, array in zip(known, expected, strict=True):
        np.testing.assert_array_equal(ours, array)
    assert isinstance(summed, Missing)


def test_rounds_of_a_loop_that_tell_each_other_something_are_not_told_apart() -> None:
    def body(sizes):
        def step(carry, _):
            arrived = lax.all_to_all(carry, "model", 0, 0, tiled=True)
            return copied(arrived), None

        return lax.scan(step, sizes, length=2)[0]

    jaxpr = jax.make_jaxpr(sharded(body, P("model"), out=P("model")))(SIZES)
    found = pallas_operands(jaxpr, (SIZES,), ["sizes"], partition=1)
    assert all(isinstance(call.operands[0].get(), Missing) for call in found)


def test_a_shape_is_missing_on_every_device() -> None:
    found = operands(sharded(copied, P("data"), out=P("data")), SHAPE, partition=7)
    assert isinstance(found[0], Missing)
    assert "x0" in found[0].why


def test_all_devices_and_rounds_share_a_typical_value() -> None:
    """One device then represents all: to follow the function on each of hundreds takes minutes and gigabytes."""

    def fn(sizes):
        def own(sizes):
            return copied(typical(sizes.sum(0).astype(jnp.int32), SIZES) + 1)

        step = sharded(own, P("data"), out=P())
        return lax.scan(lambda total, _: (total + step(sizes), None), jnp.zeros(16, jnp.int32), length=2)[0]

    calls = pallas_operands(jax.make_jaxpr(fn)(SHAPE), (SHAPE,), ["sizes"], partition=5)
    assert not any(call.operands[0].local for call in calls)
    first, second = (call.operands[0].get() for call in calls)
    assert first is second
    np.testing.assert_array_equal(first, SIZES + 1)


def test_whether_devices_give_a_typical_value_is_not_asked_while_they_are_walked() -> None:
    """They would ask each other, as deep as there are devices, for what a loop has not given yet."""

    def body(own):
        def layer(own, _):
            total = copied(typical(lax.all_gather(own, "model", tiled=True), 7 * SIZES))
            return own + total[:4], None

        return lax.scan(layer, own, None, length=2)[0]

    jaxpr = jax.make_jaxpr(sharded(body, P("model"), out=P("model")))(SIZES)
    for call in pallas_operands(jaxpr, (SIZES,), ["sizes"], partition=1):
        assert call.operands[0].local
        np.testing.assert_array_equal(call.operands[0].get(), 7 * SIZES)  # what others give in a loop is not known


def test_what_stands_for_a_missing_value_is_not_missing() -> None:
    late = Deferred(lambda: Missing("it comes from another device"))
    late.get()
    assert applied(np.negative, late).is_missing
    assert not applied(np.negative, known_or(late, 3)).is_missing


def test_a_part_that_goes_from_shards_to_shards_stays_known() -> None:
    """Like a residual of a kernel's backward pass, which the forward pass made inside another `shard_map`."""

    def fn(sizes):
        made = sharded(lambda own: own * 2, P("model"), out=P(("data", "model")))(sizes)
        return sharded(copied, P(("data", "model")), out=P("model"))(made), sharded(jnp.copy, P(), out=P())(made)

    jaxpr = jax.make_jaxpr(fn)(SIZES)
    (found,) = pallas_operands(jaxpr, (SIZES,), ["sizes"], partition=6)
    assert found.operands[0].local
    np.testing.assert_array_equal(found.operands[0].get(), 2 * SIZES[8:12])


def test_a_part_that_is_cut_anew_is_missing() -> None:
    def fn(sizes):
        return sharded(copied, P("data"), out=P("model"))(sharded(jnp.copy, P("model"), out=P("model"))(sizes))

    (found,) = operands(fn, SIZES, partition=6)
    assert isinstance(found, Missing)
    assert "together" in found.why


def test_a_jit_for_devices_that_are_not_there_is_followed() -> None:
    place = jax.sharding.NamedSharding(MESH, P("model"))
    (found,) = operands(lambda sizes: copied(jax.jit(jnp.flip, out_shardings=place)(sizes)), SIZES, partition=6)
    np.testing.assert_array_equal(found, SIZES[::-1])


def test_a_large_array_is_not_worked_out() -> None:
    def fn(sizes):
        one_hot = jax.nn.one_hot(sizes, 1 << 30)  # 64 GiB
        return copied(jnp.argmax(one_hot, axis=1) + sizes)

    (found,) = operands(fn, SIZES, partition=0)
    assert isinstance(found, Missing)
    assert "too many to follow" in found.why


def test_a_constraint_keeps_the_value() -> None:
    def fn(sizes):
        kept = lax.with_sharding_constraint(sizes, jax.sharding.NamedSharding(MESH, P("model")))
        return sharded(copied, P("model"), out=P("model"))(kept)

    (found,) = operands(fn, SIZES, partition=2)
    np.testing.assert_array_equal(found, SIZES[8:12])


def test_a_barrier_keeps_each_value_though_another_is_unknown() -> None:
    def fn(sizes, shape):
        return copied(lax.optimization_barrier((sizes, shape))[0])

    (contents,) = operands(fn, SIZES, SHAPE, partition=0)
    np.testing.assert_array_equal(contents, SIZES)


def test_what_may_differ_between_devices_is_marked() -> None:
    def body(cut, whole):
        return copied(cut, whole, whole + lax.axis_index("model"), lax.psum(whole, "model"), jnp.cumsum(whole))

    args = (SIZES, SIZES)
    traced = jax.make_jaxpr(sharded(body, P("data"), P(), out=P("data")))(*args)
    executions = device_executions(traced, args, ["cut", "whole"])
    (found,) = executions.executions
    assert [each.local for each in found.operands] == [True, False, True, False, False]
    assert not executions.local


@pytest.mark.parametrize("decided_by", ["place", "argument"])
def test_devices_that_execute_something_else_are_marked(decided_by: str) -> None:
    def body(sizes):
        decides = lax.axis_index("model") if decided_by == "place" else sizes[0]
        return lax.cond(decides == 1, lambda: copied(sizes), lambda: sizes)

    traced = jax.make_jaxpr(sharded(body, P(), out=P("data")))(SIZES)
    found = [device_executions(traced, (SIZES,), ["x"], partition=partition) for partition in range(2)]
    assert [each.local for each in found] == [decided_by == "place"] * 2
    assert [len(each.executions) for each in found] == ([0, 1] if decided_by == "place" else [int(SIZES[0] == 1)] * 2)


def test_of_computations_for_several_platforms_that_for_tpus_is_followed() -> None:
    """Also where the function is traced on a CPU."""

    def on_tpus(sizes: jax.Array) -> jax.Array:
        return lax.platform_dependent(sizes, cpu=jnp.negative, tpu=lambda sizes: copied(sizes + 1), default=jnp.abs)

    (held,) = operands(on_tpus, SIZES, partition=0)
    np.testing.assert_array_equal(held, SIZES + 1)
    (held,) = operands(lambda sizes: lax.platform_dependent(sizes, cpu=jnp.abs, default=copied), SIZES, partition=0)
    np.testing.assert_array_equal(held, SIZES)
