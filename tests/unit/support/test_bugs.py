"""Whose mistake an exception is. What is planted here fails in systolic's own code, as it may with a new JAX."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.chips import chip
from systolic.cli import main
from systolic.compiler import WorkerPool, abstract_arguments
from systolic.cost import roofline
from systolic.ops.matmul import op as planning
from systolic.spec import MatmulSpec, SpecError
from systolic.support.bugs import SystolicBug, is_own, raise_own, reports_bugs, runs_user_code

PROBLEM = MatmulSpec.of(512, 512, 512, "bfloat16")


@pytest.fixture
def broken_plan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(planning, "profiled_configs", None)
    with systolic.use(store=None):
        yield


def error_of(call: Callable[..., Any], *args: Any) -> BaseException:
    try:
        call(*args)
    except BaseException as error:  # noqa: BLE001 -- it is what is asked for
        return error
    pytest.fail("nothing was raised")


def raising(*_: Any) -> Any:
    raise KeyError("mine")


def test_what_systolic_raises_is_its_own() -> None:
    error = error_of(roofline, None, None)
    assert isinstance(error, AttributeError)
    assert is_own(error)
    # Through JAX, as when JAX calls back.
    assert is_own(error_of(jax.eval_shape, lambda: roofline(None, None)))  # type: ignore[arg-type]


def test_what_the_user_raises_is_not() -> None:
    assert not is_own(error_of(raising))
    assert not is_own(error_of(jax.eval_shape, raising))
    spec = error_of(lambda: MatmulSpec.of(0.5, "x", None, "nothing"))  # type: ignore[arg-type]
    assert is_own(spec) is not isinstance(spec, SpecError)


def test_a_function_that_systolic_calls_stays_the_users() -> None:
    x = jnp.ones((128, 128), jnp.float32)
    calls = 0

    def activation(block: jax.Array) -> jax.Array:
        nonlocal calls
        calls += 1
        if calls > 1:  # the first call only looks whether it is elementwise
            raise KeyError("mine")
        return block

    for kernel in ("xla", "interpret"):
        calls = 0
        with pytest.raises((KeyError, SpecError), match="mine") as caught:
            systolic.matmul(x, x, activation=activation, implementation=kernel)  # type: ignore[arg-type]
        assert not is_own(caught.value)


def test_errors_that_have_a_name_are_answers() -> None:
    x = jnp.ones((4, 4), jnp.float32)
    assert not is_own(error_of(systolic.matmul, x, jnp.ones((5, 4))))
    assert not is_own(error_of(chip, "v9"))


def test_a_wrong_call_of_the_library_is_the_callers() -> None:
    for call in (systolic.plan, systolic.simulate, systolic.matmul, systolic.check, systolic.explain):
        error = error_of(call)
        assert isinstance(error, TypeError)
        assert not is_own(error)


def test_what_jax_says_of_the_users_arguments_is_not() -> None:
    error = error_of(abstract_arguments, ["no array"])
    assert isinstance(error, TypeError)
    assert not is_own(error)


def test_the_first_cause_counts() -> None:
    def wrapped(call: Callable[..., Any], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:
            raise RuntimeError("something else") from error

    assert is_own(error_of(wrapped, roofline, None, None))
    assert not is_own(error_of(wrapped, raising))


def test_a_full_disk_is_nobodys_mistake() -> None:
    def full(*_: Any) -> float:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        reports_bugs(full)()


def test_a_function_that_runs_the_users_is_not_blamed_for_jax() -> None:
    # As a function of systolic's would be: its file is what counts.
    scope: dict[str, Any] = {"jax": jax, "__name__": "systolic.planted"}
    text = "def own(fn):\n    return [each for each in jax.eval_shape(fn)]\n"
    exec(compile(text, planning.__file__, "exec"), scope)
    no_array = error_of(scope["own"], lambda: "text")
    assert isinstance(no_array, TypeError)
    assert is_own(no_array)
    runs_user_code(scope["own"])
    assert not is_own(error_of(scope["own"], lambda: "text"))


def test_a_bug_says_what_and_where_and_travels() -> None:
    error = error_of(roofline, None, None)
    with pytest.raises(SystolicBug) as caught:
        raise_own(error)
    bug = caught.value
    assert bug.__cause__ is error
    assert "systolic/cost/roofline.py:" in bug.summary
    assert "in roofline" in bug.summary
    assert "this is a bug of systolic" in str(bug)
    assert "systolic doctor" in str(bug)
    assert jax.__version__ in str(bug)
    assert "Traceback" in bug.details
    again = pickle.loads(pickle.dumps(bug))
    assert (again.summary, again.details, str(again)) == (bug.summary, bug.details, str(bug))
    assert isinstance(again.__cause__, AttributeError)
    with pytest.raises(SystolicBug) as twice:
        raise_own(again)
    assert twice.value is again


def test_a_cause_that_cannot_travel_does_not_stop_it() -> None:
    class LocalError(KeyError):
        pass

    bug = SystolicBug("a", "b")
    bug.__cause__ = LocalError("x")
    # Dask, where another test has imported it, registers its own way to pickle exceptions.
    sent = io.BytesIO()
    pickler = pickle.Pickler(sent)
    pickler.dispatch_table = {}
    pickler.dump(bug)
    again = pickle.loads(sent.getvalue())
    assert again.summary == "a"
    assert again.__cause__ is None


@pytest.mark.usefixtures("broken_plan")
def test_plan_reports_it() -> None:
    with pytest.raises(SystolicBug, match=r"NoneType.*systolic/ops/matmul/op.py") as caught:
        systolic.plan(PROBLEM, "v5e")
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.usefixtures("broken_plan")
def test_the_command_line_has_an_exit_code_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "512,512,512", "--chip", "v5e"]) == 70
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("systolic: this is a bug of systolic, not of your code: TypeError: ")
    assert err.count("Traceback (most recent call last)") == 1
    assert "matmul/op.py" in err


def test_the_help_names_the_exit_codes(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "70: a bug of systolic" in " ".join(capfd.readouterr().out.split())


def test_a_task_of_a_worker_says_whose_mistake_it_was() -> None:
    with WorkerPool(max_workers=1) as pool:
        with pytest.raises(SystolicBug, match=r"in roofline") as caught:
            pool.submit(roofline, PROBLEM, None).result()  # type: ignore[arg-type]
        assert isinstance(caught.value.__cause__, AttributeError)
        assert "roofline" in caught.value.details
        for task, args in ((int, ("x",)), (raising, ())):
            error = error_of(pool.submit(task, *args).result)
            assert isinstance(error, (ValueError, KeyError))
            assert not is_own(error)
