"""Jitted calls of a program that runs as if on a TPU: what is counted, computed and sent. No worker compiles here."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from systolic import chip
from systolic.compiler import StandIn
from systolic.compiler.pickling import dumps
from systolic.running import HbmWarning, Recording
from systolic.running.recording import RecordingError
from systolic.running.sent import SentCall


class _Refusing:
    """A pool whose jobs all fail, which keeps the calls that it was sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    @property
    def steps(self) -> list[Any]:
        """The calls, as a worker sees them."""
        return list(map(pickle.loads, self.sent))

    def submit(self, _task: Any, step: Any, *_: Any, **__: Any) -> Future[Any]:
        self.sent.append(dumps(step))
        job: Future[Any] = Future()
        job.set_exception(TimeoutError("not compiled"))
        return job


@dataclass
class Recorded:
    recording: Recording
    pool: _Refusing

    def calls(self) -> dict[str, int]:
        return {f"{p.name}({p.arguments})": p.calls for p in self.recording.result().programs}


@pytest.fixture(params=["values", "zeros"])
def recorded(request: pytest.FixtureRequest) -> Iterator[Recorded]:
    pool: Any = _Refusing()
    recording = Recording(pool, chip("v6e"), values=request.param == "values")
    with recording.active():
        yield Recorded(recording, pool)


def test_each_distinct_program_is_sent_once(recorded: Recorded) -> None:
    @functools.partial(jax.jit, static_argnames="times")
    def scaled(x: Any, *, offset: Any = 0, times: int = 1) -> Any:
        return x * times + offset

    x = jnp.ones((4, 128))
    for _ in range(3):
        scaled(x)
    scaled(x, times=2)
    scaled(x, times=2, offset=x)
    scaled(x.astype(jnp.bfloat16))
    assert recorded.calls() == {
        "scaled(f32[4,128])": 3,
        "scaled(f32[4,128], times=2)": 1,
        "scaled(f32[4,128], f32[4,128], times=2)": 1,
        "scaled(bf16[4,128])": 1,
    }
    assert recorded.recording.result().sequence == (0, 0, 0, 1, 2, 3)


@pytest.mark.parametrize("values", [True, False])
def test_a_worker_gets_the_call_with_static_arguments_bound(values: bool) -> None:
    pool = _Refusing()
    recording = Recording(pool, chip("v6e"), values=values)  # type: ignore[arg-type]
    with recording.active():

        @jax.jit(static_argnums=(1, -1), donate_argnums=0)
        def weighted(x: Any, negative: bool, y: Any, power: int) -> Any:
            return (-x if negative else x) + y**power

        x, y = jnp.full((8,), 2.0), jnp.full((8,), 3.0)
        weighted(x, True, y, 2)
    (step,) = pool.steps
    assert step.fn.options.donated == (0,)
    np.testing.assert_array_equal(step.fn.fn(np.full(8, 2.0), np.full(8, 3.0)), np.full(8, 7.0))
    assert x.is_deleted()


def test_calls_inside_a_trace_are_parts_of_it(recorded: Recorded) -> None:
    @jax.jit
    def squared(x: Any) -> Any:
        return x * x

    @jax.jit
    def outer(x: Any) -> Any:
        return squared(x) + squared(jnp.float32(3))  # and one without any traced argument

    x = jnp.arange(4.0)
    assert outer(x).shape == (4,)
    np.testing.assert_array_equal(jax.vmap(squared)(x), x * x)
    np.testing.assert_array_equal(jax.grad(lambda x: squared(x).sum())(x), 2 * x)
    assert jax.eval_shape(squared, x).shape == (4,)
    assert squared.lower(x).compile()(x).shape == (4,)
    assert squared.trace(x).out_info.shape == (4,)
    assert recorded.calls() == {"outer(f32[4])": 1}


def test_what_replaces_a_jitted_function_behaves_like_it(recorded: Recorded) -> None:
    class Model:
        size = 3

        @functools.partial(jax.jit, static_argnums=0)
        def apply(self, x: Any) -> Any:
            """Return x, times the size."""
            return x * self.size

    assert isinstance(Model.apply, jax.stages.Wrapped)
    apply: Any = getattr(Model, "apply")  # noqa: B009 -- pyright knows the original's attributes alone
    assert (apply.__name__, apply.__doc__) == ("apply", "Return x, times the size.")
    assert Model().apply(jnp.ones(8)).shape == (8,)
    assert apply.__wrapped__(Model(), 2) == 6
    assert jax.default_backend() == "tpu"
    with pytest.raises(TypeError, match="positional argument"):
        jax.jit(lambda x: x)(1, 2)
    with pytest.raises(TypeError, match="abstract array"):
        jax.jit(lambda x: x)("text")
    assert list(recorded.calls().values()) == [1]


def test_public_functions_of_jax_are_timed_where_they_are_jitted(recorded: Recorded) -> None:
    x = jnp.ones((8, 8))
    jnp.dot(x, x)
    _ = x @ x
    assert recorded.calls() == {"dot(f32[8,8], f32[8,8])": 1}


def test_a_class_of_the_script_reaches_the_worker_as_a_pytree(recorded: Recorded) -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class State:
        weight: Any

    @jax.jit
    def doubled(state: State) -> State:
        return State(state.weight * 2)

    assert doubled(State(jnp.ones(8))).weight.shape == (8,)
    (step,) = recorded.pool.steps
    registered = [registration.args[0].__name__ for registration in step.fn.registrations]
    assert registered == ["State"]
    assert isinstance(step.fn, SentCall)


def test_contents_of_indices_are_sent_and_computed_zeros_are_not() -> None:
    pool: Any = _Refusing()
    recording = Recording(pool, chip("v6e"), values=False)
    with recording.active():
        chosen = jax.jit(lambda index, x: x[index])
        chosen(jnp.array([3, 1]), jnp.ones((4, 4096)))
        chosen(jax.jit(lambda: jnp.array([3, 1, 2]))(), jnp.ones((4, 4096)))
    given, _, made = pool.steps
    np.testing.assert_array_equal(given.args[0], [3, 1])
    assert isinstance(given.args[1], jax.ShapeDtypeStruct)
    assert isinstance(made.args[0], jax.ShapeDtypeStruct)


def test_results_are_zeros_of_the_right_types() -> None:
    recording = Recording(_Refusing(), chip("v6e"), values=False)  # type: ignore[arg-type]

    def results(key: Any) -> Any:
        return {"keys": jax.random.split(key, 3), "wide": jnp.ones((3, 5), jnp.bfloat16), "bits": jnp.ones(7, jnp.int4)}

    with recording.active():
        made = jax.jit(results)(jax.random.key(1))
    plain = jax.eval_shape(results, jax.random.key(1))
    assert jax.tree.map(lambda a: (a.shape, a.dtype), made) == jax.tree.map(lambda a: (a.shape, a.dtype), plain)
    assert not np.any(np.asarray(made["wide"]))
    assert not np.any(np.asarray(made["bits"]))
    assert not np.any(jax.random.key_data(made["keys"]))


def test_kernels_run_in_interpret_mode() -> None:
    def kernel(x_vmem: Any, out_vmem: Any) -> None:
        out_vmem[...] = x_vmem[...] + 1

    recording = Recording(_Refusing(), chip("v6e"))  # type: ignore[arg-type]
    with recording.active():
        plain = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32))
        np.testing.assert_array_equal(jax.jit(plain)(jnp.ones((8, 128))), np.full((8, 128), 2.0))
        in_a_thread: list[Any] = []
        adding = jax.jit(lambda x: plain(x) + 1)
        thread = threading.Thread(target=lambda: in_a_thread.append(adding(jnp.ones((8, 128)))))
        thread.start()
        thread.join()
    np.testing.assert_array_equal(in_a_thread[0], np.full((8, 128), 3.0))
    assert len(recording.result().programs) == 2


def test_other_compilations_are_named() -> None:
    recording = Recording(_Refusing(), chip("v6e"))  # type: ignore[arg-type]
    with recording.active():
        x = jnp.ones((7, 13, 3))
        jax.jit(lambda x: x + 1)(x)
        _ = x @ x.reshape(7, 3, 13)
    assert set(recording.result().untimed) >= {"matmul"}
    assert "<lambda>" not in recording.result().untimed


def test_a_function_that_cannot_be_sent_has_a_reason() -> None:
    lock = threading.Lock()

    def locked(x: Any) -> Any:
        with lock:
            return x

    recording = Recording(_Refusing(), chip("v6e"))  # type: ignore[arg-type]
    with recording.active():
        assert jax.jit(locked)(jnp.ones(8)).shape == (8,)
    (program,) = recording.result().failures
    assert "cannot pickle" in program.reason


def test_arrays_that_do_not_fit_are_warned_of() -> None:
    small = replace(chip("v6e"), name="small", aliases=(), hbm_bytes_per_chip=2**20)
    recording = Recording(_Refusing(), small)  # type: ignore[arg-type]
    with recording.active():
        held = [jnp.ones((1024, 257)) for _ in range(2)]
        with pytest.warns(HbmWarning, match=r"2 × float32\[1024,257\], 2.01 MiB"):
            jax.jit(lambda x: x[0, 0])(held[0])
    result = recording.result()
    assert not result.fits
    assert result.needed_bytes >= 2 * held[0].nbytes


def test_names_are_put_back() -> None:
    before = jax.jit, jnp.dot, jax.default_backend, pl.pallas_call, jax.tree_util.register_dataclass
    recording = Recording(_Refusing(), chip("v6e"))  # type: ignore[arg-type]
    with recording.active():
        function = jax.jit(lambda x: x + 1)
        assert isinstance(function, StandIn)
        with pytest.raises(RecordingError), Recording(_Refusing(), chip("v6e")).active():  # type: ignore[arg-type]
            pass
    assert (jax.jit, jnp.dot, jax.default_backend, pl.pallas_call, jax.tree_util.register_dataclass) == before
    assert float(function(jnp.float32(1))) == 2
    assert recording.result().sequence == ()
