"""Contents of kernels' operands, computed from the traced function; functions and arguments as text."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import systolic
from systolic import typical
from systolic.compiler import (
    DeviceExecutions,
    Missing,
    NamedFunctionError,
    argument_values,
    device_executions,
    named_argument,
    pallas_operands,
)
from systolic.compiler.named import named_function
from systolic.compiler.pickling import dumps
from systolic.simulator import Unknown, parse_hlo
from systolic.timing.contents import KernelContents, parameter_contents

X = jax.ShapeDtypeStruct((64, 128), jnp.float32)
INDEX = np.array([3, 1, 2, 0, 1, 1, 0, 2], np.int32)


def gather(index, x):
    """A kernel that prefetches `index`."""

    def kernel(index_smem, x_vmem, out_vmem):
        del index_smem
        out_vmem[...] = x_vmem[...]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(8,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, index: (index[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, index: (i, 0)),
    )
    return pl.pallas_call(kernel, out_shape=x, grid_spec=spec)(index, x)


@jax.custom_vjp
def gathered(index, x):
    """A function whose forward function JAX may drop: it gathers by `index` + 1, the backward function by + 2."""
    return gather(index, x)


gathered.defvjp(
    lambda index, x: (gather(index + 1, x), index),
    lambda index, g: (None, gather(index + 2, g)),
    optimize_remat=True,
)


def found(fn, *args):
    jaxpr = jax.make_jaxpr(fn)(*args)
    names = [f"a{number}" for number in range(len(args))]
    return pallas_operands(jaxpr, args, names)


def first_operands(fn, *args) -> list[np.ndarray]:
    return [np.asarray(execution.operands[0].get()) for execution in found(fn, *args)]


def test_values_computed_from_an_argument() -> None:
    (values,) = first_operands(lambda i, x: gather(jnp.cumsum(i) % 8, x), INDEX, X)
    np.testing.assert_array_equal(values, np.cumsum(INDEX) % 8)


def test_values_in_the_forward_function_of_a_custom_vjp_that_may_be_dropped() -> None:
    """With `optimize_remat` JAX keeps it as an equation of its own, `remat_opt`."""

    def gradient(index, x):
        value, backward = jax.vjp(lambda x: gathered(index, x), x)
        return value, backward(value)

    index = INDEX % 4
    forward, backward = first_operands(gradient, index, X)
    np.testing.assert_array_equal(forward, index + 1)
    np.testing.assert_array_equal(backward, index + 2)


def test_values_in_the_forward_function_of_a_custom_vjp_in_a_loop() -> None:
    """Since jax 0.12 the forward pass has it as `eval_jaxpr`. Nothing needs what is computed again."""

    def loss(x, index):
        layer = jax.checkpoint(lambda x, _: (gathered(index, x), None))
        return jnp.sum(lax.scan(layer, x, None, length=2)[0])

    index = INDEX % 4
    values = first_operands(lambda x, index: jax.value_and_grad(loss)(x, index), X, index)
    np.testing.assert_array_equal(values, [index, index, index + 2, index + 2])


def test_values_of_a_function_for_a_mesh_that_is_not_there() -> None:
    """Its explicit axes are in the types of values and in parameters of operations, here of iota and broadcast."""
    mesh = jax.sharding.AbstractMesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    def fn(index, x):
        rows = lax.broadcasted_iota(jnp.int32, (8,), 0, out_sharding=cut) + jnp.arange(8)
        return gather(jnp.where(jax.sharding.reshard(rows, jax.sharding.PartitionSpec()) > 6, index, 3), x)

    with jax.sharding.use_abstract_mesh(mesh):
        (values,) = first_operands(fn, INDEX, X)
    np.testing.assert_array_equal(values, np.where(2 * np.arange(8) > 6, INDEX, 3))


def test_what_is_typical_counts_where_nothing_is_known() -> None:
    shape = jax.ShapeDtypeStruct(INDEX.shape, INDEX.dtype)

    def fn(index, x):
        @jax.checkpoint
        def body(x, _):
            return gather(typical(jnp.cumsum(index), INDEX) % 4, x), None

        return lax.scan(body, x, None, length=2)[0]

    for values in first_operands(fn, shape, X):
        np.testing.assert_array_equal(values, INDEX % 4)
    for values in first_operands(fn, INDEX, X):
        np.testing.assert_array_equal(values, np.cumsum(INDEX) % 4)


def test_what_is_typical_changes_nothing_when_it_runs() -> None:
    kept = jax.jit(lambda index: typical(index, np.zeros(8)))
    np.testing.assert_array_equal(kept(INDEX), INDEX)
    several = np.stack([INDEX, INDEX + 1])
    np.testing.assert_array_equal(jax.vmap(kept, in_axes=1, out_axes=1)(several.T), several.T)
    with pytest.raises(ValueError, match="same shape"):
        typical(jnp.asarray(INDEX), 3)


def test_nested_functions_and_loops() -> None:
    def fn(index, x):
        inner = jax.jit(lambda i, x: gather(i + 1, x))
        return lax.scan(lambda x, step: (inner(index * step, x), None), x, jnp.arange(3))[0]

    executions = found(fn, INDEX, X)
    assert len({execution.site for execution in executions}) == 1
    for step, execution in enumerate(executions):
        np.testing.assert_array_equal(np.asarray(execution.operands[0].get()), INDEX * step + 1)


def test_a_while_loop_goes_round_as_often_as_its_values_say() -> None:
    def fn(index, n, x):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, gather(index + c[0], c[1])), (0, x))[1]

    assert [values[0] for values in first_operands(fn, INDEX, np.int32(3), X)] == [3, 4, 5]
    assert found(fn, INDEX, jax.ShapeDtypeStruct((), jnp.int32), X) == []


@pytest.mark.parametrize(("which", "expected"), [(0, INDEX), (1, INDEX * 2)])
def test_only_the_branch_that_is_taken(which: int, expected: np.ndarray) -> None:
    def fn(which, index, x):
        return lax.cond(which > 0, lambda: gather(index * 2, x), lambda: gather(index, x))

    (values,) = first_operands(fn, np.int32(which), INDEX, X)
    np.testing.assert_array_equal(values, expected)


def test_a_call_whose_result_nothing_uses_is_left_out() -> None:
    def fn(index, x):
        gather(index + 5, x)
        return jax.jit(lambda i, x: (gather(i, x), gather(i + 1, x)))(index, x)[1]

    (values,) = first_operands(fn, INDEX, X)
    np.testing.assert_array_equal(values, INDEX + 1)


def test_what_is_missing_is_named() -> None:
    (execution,) = found(lambda i, x: gather(i * 2, x), jax.ShapeDtypeStruct((8,), jnp.int32), X)
    assert execution.operands[0].get() == Missing("argument a0, of which only the shape was given", 0)
    first, second = found(lambda i, x: gather(gather(i, x)[:8, 0].astype(jnp.int32), x), INDEX, X)
    np.testing.assert_array_equal(np.asarray(first.operands[0].get()), INDEX)
    assert second.operands[0].get() == Missing("argument a1, of which only the shape was given", 1)


HLO = """ENTRY %main (i: s32[8], x: f32[64,128]) -> f32[64,128] {
  %i = s32[8]{0:T(128)} parameter(0), metadata={op_name="index"}
  %x = f32[64,128]{1,0:T(8,128)} parameter(1), metadata={op_name="x"}
  %g.2 = f32[64,128]{1,0:T(8,128)} custom-call(%i, %x), custom_call_target="tpu_custom_call"
  ROOT %g.10 = f32[64,128]{1,0:T(8,128)} custom-call(%i, %g.2), custom_call_target="tpu_custom_call"
}
"""


def test_kernels_are_matched_in_the_order_in_which_they_were_written() -> None:
    hlo = parse_hlo(HLO)
    executions = found(lambda i, x: gather(i + 1, gather(i, x)), INDEX, X)
    contents = KernelContents(hlo, lambda: DeviceExecutions(executions=executions, local=False))
    for name, expected in (("g.2", INDEX), ("g.10", INDEX + 1)):
        words = contents.operand_words(name, 0, 0)
        assert words is not None
        assert list(words())[:8] == expected.tolist()  # type: ignore[arg-type]
    assert contents.operand_words("g.2", 1, 0) is None  # it ran once
    assert contents.operand_words("other", 0, 0) is None
    fewer = DeviceExecutions(executions=executions[:1], local=False, complete=False)
    assert KernelContents(hlo, lambda: fewer).operand_words("g.2", 0, 0) is None


def test_calls_that_the_compiler_has_joined_or_copied_are_known_where_all_are_alike() -> None:
    hlo = parse_hlo(HLO)
    alike = found(lambda i, x: gather(i, gather(i, gather(i, x))), INDEX, X)
    words = KernelContents(hlo, lambda: DeviceExecutions(executions=alike, local=False)).operand_words("g.10", 0, 0)
    assert words is not None
    assert list(words())[:8] == INDEX.tolist()  # type: ignore[arg-type]
    others = found(lambda i, x: gather(i + 1, gather(i, gather(i, x))), INDEX, X)
    assert (
        KernelContents(hlo, lambda: DeviceExecutions(executions=others, local=False)).operand_words("g.10", 0, 0)
        is None
    )


def test_a_call_in_a_loop_is_known_where_the_compiler_numbered_it_behind_another_one() -> None:
    def fn(index: jax.Array, x: jax.Array) -> jax.Array:
        return gather(index, lax.fori_loop(0, 3, lambda _, x: gather(index, x), x))

    executed = DeviceExecutions(executions=found(fn, INDEX, X), local=False)
    contents = KernelContents(parse_hlo(HLO), lambda: executed)
    for call in range(3):
        words = contents.operand_words("g.10", call, 0)
        assert words is not None
        assert list(words())[:8] == INDEX.tolist()  # type: ignore[arg-type]


def test_a_loop_of_unknown_length_leaves_calls_out() -> None:
    def fn(index: jax.Array, n: jax.Array, x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, n, lambda _, x: gather(index, x), x)

    for n, complete in ((np.int32(2), True), (jax.ShapeDtypeStruct((), jnp.int32), False)):
        executed = device_executions(jax.make_jaxpr(fn)(INDEX, n, X), (INDEX, n, X), "inx")
        assert executed.complete == complete


def test_arguments_as_contents_of_memory() -> None:
    index, x = parameter_contents(parse_hlo(HLO), [INDEX, None])
    assert list(index)[:8] == INDEX.tolist()  # type: ignore[arg-type]
    assert isinstance(x, Unknown)
    assert x.why == "argument x, of which only the shape was given"


def test_argument_values() -> None:
    values = argument_values([{"a": np.arange(3), "b": X}, 7, True, jnp.ones(2)])
    assert [None if value is None else value.dtype.name for value in values] == [
        "int32",
        None,
        "int32",
        "bool",
        "float32",
    ]
    assert argument_values([np.zeros(5 << 20, np.float32)]) == [None]


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("bf16[4096,128]", (4096, 128), ml_dtypes.bfloat16),
        ("f32[]", (), np.float32),
        ("s8[3, 4]", (3, 4), np.int8),
        ("int32[2]", (2,), np.int32),
        ("f8e5m2[8]", (8,), ml_dtypes.float8_e5m2),
        ("f8e4m3fn[8]", (8,), ml_dtypes.float8_e4m3fn),
        ("pred[2]", (2,), np.bool_),
    ],
)
def test_a_shape_as_text(text: str, shape: tuple[int, ...], dtype: type) -> None:
    argument = named_argument(text)
    assert isinstance(argument, jax.ShapeDtypeStruct)
    assert (argument.shape, argument.dtype) == (shape, np.dtype(dtype))


def test_values_as_text(tmp_path: Path) -> None:
    np.testing.assert_array_equal(named_argument("s32[3]=1,-5,2"), np.array([1, -5, 2], np.int32))
    np.testing.assert_array_equal(named_argument("f32[2,2]=1.5"), np.full((2, 2), 1.5, np.float32))
    np.testing.assert_array_equal(named_argument("pred[2]=1,0"), [True, False])
    np.save(tmp_path / "a.npy", INDEX)
    np.testing.assert_array_equal(named_argument(str(tmp_path / "a.npy")), INDEX)


@pytest.mark.parametrize("text", ["bf16", "q7[2]", "s32[3]=1,2", "s32[2]=a,b", "nothing.npy", "f32[2]x", "float33[2]"])
def test_no_argument(text: str) -> None:
    with pytest.raises(NamedFunctionError):
        named_argument(text)


def test_functions_as_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    (tmp_path / "beside.py").write_text("TWO = 2\n")
    path.write_text("import beside\nclass A:\n    def twice(x): return beside.TWO * x\n")
    assert named_function(f"{path}:A.twice")(4) == 8
    assert named_function("math:sqrt")(9) == 3
    for wrong in (f"{path}:B", f"{path}:A.x", f"{tmp_path}/no.py:f", "no_such_module_at_all:f", "math", "math:no-name"):
        with pytest.raises(NamedFunctionError):
            named_function(wrong)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def scaled(x, factor):
    """A function that JAX wraps in an object."""
    return x * factor


scaled.defvjp(lambda x, factor: (x * factor, None), lambda factor, _, g: (g * factor * 10,))


def test_wrapped_functions_travel() -> None:
    @jax.custom_vjp
    def local(x):
        return x + 1

    local.defvjp(lambda x: (x + 1, None), lambda _, g: (g * 7,))
    for fn, value, slope in ((local, 4.0, 7.0), (functools.partial(scaled, factor=2.0), 6.0, 20.0)):
        again = pickle.loads(dumps(fn))
        assert again(3.0) == value
        assert jax.grad(again)(3.0) == slope


def test_the_sizes_of_a_product_whose_backend_is_left_open_are_followed() -> None:
    def layer(x: jax.Array, chosen: jax.Array, matrices: jax.Array) -> jax.Array:
        sizes = (chosen[:, None] == jnp.arange(4)).astype(jnp.int32).sum(0)
        return systolic.grouped_matmul(x, matrices, typical(sizes, np.array([9, 0, 3, 4])), chip="v6e")

    arrays = [jax.ShapeDtypeStruct(*of) for of in (((16, 128), "f4"), ((16,), "i4"), ((4, 128, 128), "f4"))]
    (call,) = pallas_operands(jax.make_jaxpr(layer)(*arrays), arrays, ["x", "chosen", "matrices"])
    np.testing.assert_array_equal(call.operands[0].get(), [9, 0, 3, 4])
