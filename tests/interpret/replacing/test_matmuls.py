"""Products of plain JAX taken by kernels: a layer of a model in every form that JAX gives it, beside itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import cloudpickle
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import systolic
from systolic.chips import UnknownChipError
from systolic.schedule import KernelConfig
from systolic.spec import SpecError
from systolic.timing import Measurement
from systolic.timing.experiment import Experiment

take_all = functools.partial(systolic.matmuls, where_unknown="kernel", chip="v6e")


@pytest.fixture(autouse=True)
def _no_winners() -> Iterator[None]:
    with systolic.use(store=None):
        yield


def attention(weights: Any, x: Any) -> Any:
    q, k, v = (jnp.einsum("bsd,dhf->bshf", x, weights[name]) for name in "qkv")
    shares = jax.nn.softmax(jnp.einsum("bqhf,bkhf->bhqk", q, k), axis=-1)
    return jnp.einsum("bshf,hfd->bsd", jnp.einsum("bhqk,bkhf->bqhf", shares, v), weights["o"])


def mlp(weights: Any, x: Any) -> Any:
    return jax.nn.silu(x @ weights["up"] + weights["bias"]) @ weights["down"]


def layer(weights: Any, x: Any) -> Any:
    return mlp(weights, attention(weights, x))


def total(fn: Callable[..., Any], weights: Any, x: Any) -> Any:
    return (fn(weights, x) ** 2).sum()


loss = functools.partial(total, mlp)


def normal(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape, np.float32) * 0.3)


X = normal(2, 7, 16)
WEIGHTS = {name: normal(16, 2, 8) for name in "qkv"}
WEIGHTS |= {"o": normal(2, 8, 16), "up": normal(16, 24), "bias": normal(24), "down": normal(24, 16)}


def twice(weights: Any, x: Any) -> Any:
    return lax.scan(lambda x, _: (mlp(weights, x), None), x, None, length=2)[0].sum()


def perhaps(weights: Any, x: Any) -> Any:
    return lax.cond(x[0, 0, 0] < 9, mlp, lambda _, x: x, weights, x)


def until(weights: Any, x: Any) -> Any:
    return lax.while_loop(lambda at: at[0] < 2, lambda at: (at[0] + 1, mlp(weights, at[1])), (0, x))[1]


def on_devices(weights: Any, x: Any) -> Any:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, every = PartitionSpec("data"), PartitionSpec()
    return jax.shard_map(mlp, mesh=mesh, in_specs=(every, rows), out_specs=rows)(weights, x)


@jax.custom_vjp
def own_derivative(weights: Any, x: Any) -> Any:
    return loss(weights, x)


def own_forward(weights: Any, x: Any) -> Any:
    return loss(weights, x), (weights, x)


def own_backward(kept: Any, out: Any) -> Any:
    weights, x = kept
    return jax.tree.map(lambda slope: out * slope, jax.grad(loss)(weights, x)), x


own_derivative.defvjp(own_forward, own_backward)


def alike(found: Any, wanted: Any) -> None:
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4), found, wanted)


def counts(products: systolic.Matmuls) -> list[int]:
    """Count the products: the replaced ones, and all."""
    rows = products.summary().rows
    return [sum(row[1] for row in rows if row[2] == "systolic"), sum(row[1] for row in rows)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("fn", "products"),
    [
        (layer, 8),
        (jax.jit(jax.grad(functools.partial(total, layer))), 24 - 3),  # q, k and v: x has no gradient
        (jax.jit(jax.grad(twice)), 6),
        (jax.grad(jax.checkpoint(loss)), 4 + 2 + 1),
        (jax.jit(perhaps), 2),
        (jax.jit(until), 2),
        (on_devices, 2),
        (own_derivative, 2),
        (jax.grad(own_derivative), 2 + 2 + 3),
        (lambda weights, x: jax.vmap(mlp, in_axes=(None, 0))(weights, x), 2),
    ],
    ids=["plain", "grad", "scan", "remat", "cond", "while", "shard_map", "custom_vjp", "its gradient", "vmap"],
)
def test_every_product_of_a_model_is_taken(fn: Callable[..., Any], products: int) -> None:
    wanted = fn(WEIGHTS, X)
    with take_all(implementation="xla") as taken:
        found = fn(WEIGHTS, X)
    alike(found, wanted)
    assert counts(taken) == [products, products]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fn", [mlp, jax.jit(mlp), jax.checkpoint(mlp), perhaps, on_devices])
def test_gradients_of_a_function_that_a_block_is_in(fn: Callable[..., Any]) -> None:
    wanted = jax.grad(functools.partial(total, fn), argnums=(0, 1))(WEIGHTS, X)
    inside = take_all(implementation="xla")
    alike(jax.jit(jax.grad(functools.partial(total, inside(fn)), argnums=(0, 1)))(WEIGHTS, X), wanted)
    assert counts(inside) == [2, 2]


def test_the_kernels_themselves() -> None:
    value_and_slopes = jax.value_and_grad(loss)
    wanted = value_and_slopes(WEIGHTS, X)
    with take_all(implementation="interpret"):
        found = jax.jit(value_and_slopes)(WEIGHTS, X)
    alike(found, wanted)


def kernels(fn: Callable[..., Any]) -> int:
    """Kernels in a program for a TPU."""
    module = jax.export.export(jax.jit(fn), platforms=["tpu"])(WEIGHTS, X).mlir_module()
    return module.count("tpu_custom_call")


def test_a_function_that_was_compiled_before() -> None:
    compiled = jax.jit(mlp)
    compiled(WEIGHTS, X)

    def inside(weights: Any, x: Any) -> Any:
        with take_all():
            return compiled(weights, x)

    assert [kernels(inside), kernels(take_all()(compiled)), kernels(compiled)] == [2, 2, 0]


class Compiler:
    """The experiments of `systolic.tune`, of which XLA's take so many microseconds, and ours those of the model."""

    def __init__(self, **xla_us: float) -> None:
        self.xla_us = xla_us

    def __call__(self, experiment: Experiment) -> Future[Measurement]:
        fn: Any = experiment.fn
        is_xla = not any(isinstance(value, KernelConfig) for value in fn.args)
        n = experiment.args[0].rhs.shape[-1]
        run = SimpleNamespace(
            prefetch_us=0.0, stalls={}, vmem_bytes=1, hbm_read_bytes=1, hbm_written_bytes=1, bundles=1, flags={}
        )
        future: Future[Measurement] = Future()
        time_us = self.xla_us[f"n{n}"] if is_xla else 50.0
        future.set_result(Measurement(chip="v6e", provenance="simulated", time_us=time_us, run=cast(Any, run)))
        return future


def test_times_decide(tmp_path: Path) -> None:
    with systolic.use(store=tmp_path / "trials.sqlite"):
        products = systolic.matmuls(chip="v6e", implementation="xla", least_ratio=1.1)
        run = jax.jit(products(mlp))
        run(WEIGHTS, X)
        assert counts(products) == [0, 2]
        assert {one.reason for one in products.decisions} == {"XLA's time is not known"}
        assert ".tune()" in str(products)
        tuned = products.tune(submit=Compiler(n24=60.0, n16=54.0), trials=1)
        assert [one.spec.n for one in tuned] == [24, 16]
        assert products.decisions == ()
        jax.jit(products(mlp))(WEIGHTS, X)
        one, other = products.decisions
        assert (one.taken, one.ratio, one.ours_us, one.xla_us) == (True, 1.2, 50.0, 60.0)
        assert (other.taken, other.ratio) == (False, 54 / 50)
        assert other.reason.startswith("simulated, ")
        assert other.reason.endswith("; asked is 1.1")
        with systolic.matmuls(chip="v5e", implementation="xla") as elsewhere:
            mlp(WEIGHTS, X)
        assert counts(elsewhere) == [0, 2]


def test_what_is_left() -> None:
    @jax.custom_batching.custom_vmap
    def whole(x: Any) -> Any:
        return x @ x

    @whole.def_vmap
    def _(_size: int, _mapped: Any, x: Any) -> Any:
        return x @ x, True

    square = normal(8, 8)
    with take_all() as products:
        whole(square)
        systolic.matmul(square, square)
        jnp.matmul(jnp.arange(8), jnp.arange(8))
        jnp.matmul(jnp.zeros((0, 8)), square)
        lax.dot_general(square, square, (((1,), (0,)), ((), ())), precision=("high", "default"))
    assert counts(products) == [0, 4]
    assert {one.reason.split(" (")[0] for one in products.decisions} == {
        "it is inside of custom_vmap_call, which is left whole",
        "the kernel does not multiply int32",
        "it is empty",
        "the kernel has no precision",
    }
    with systolic.matmuls(where_unknown="kernel") as products:
        jnp.matmul(square, square)
    assert "no TPU" in products.decisions[0].reason
    mesh = jax.make_mesh((1,), ("data",))
    cut = jax.device_put(square, jax.NamedSharding(mesh, PartitionSpec("data")))
    ways = (systolic.matmuls, "it is cut over a mesh"), (take_all, "XLA's time is not known")
    for make, reason in ways:
        products = make(chip="v6e", implementation="xla")
        np.testing.assert_allclose(jax.jit(products(jnp.matmul))(cut, square), square @ square, rtol=1e-5)
        assert products.decisions[0].reason.startswith(reason)
    with take_all(chip="v4") as products:
        lax.dot(square.astype(np.int8), square.astype(np.int8), preferred_element_type=jnp.int32)
    assert "v4 has no matrix multiplication of int8" in products.decisions[0].reason


def test_it_goes_to_workers_and_refuses_options() -> None:
    inside = cloudpickle.loads(cloudpickle.dumps(take_all(implementation="xla")(mlp)))
    alike(inside(WEIGHTS, X), mlp(WEIGHTS, X))
    with pytest.raises(SpecError, match="where_unknown='ours' is unknown; choose from xla, kernel"):
        systolic.matmuls(where_unknown="ours")  # type: ignore[arg-type]
    with pytest.raises(UnknownChipError, match="v9"):
        systolic.matmuls(chip="v9")


def test_blocks_in_blocks() -> None:
    outer, inner = take_all(implementation="xla"), systolic.matmuls(chip="v6e")

    def broken() -> None:
        with outer:
            with inner:
                jnp.matmul(X, WEIGHTS["up"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    jnp.matmul(X, WEIGHTS["up"])
    assert (counts(inner), counts(outer)) == ([0, 1], [1, 1])


def test_a_model_of_equinox() -> None:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(in_size=16, out_size=8, width_size=24, depth=1, key=jax.random.key(0))

    def total(model: Any, x: Any) -> Any:
        return (jax.vmap(model)(x) ** 2).sum()

    wanted = eqx.filter_value_and_grad(total)(model, X[0])
    with take_all(implementation="xla") as products:
        found = eqx.filter_value_and_grad(total)(model, X[0])
    alike(jax.tree.leaves(found), jax.tree.leaves(wanted))
    assert counts(products) == [5, 5]  # two, and of their gradients all but that of x
