"""`systolic run`: a script with a helper module beside it, as its user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

import systolic
from systolic.cli.main import main

HELPER = """
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, static_argnames="times")
def repeated(x, *, times):
    for _ in range(times):
        x = jnp.tanh(x @ x)
    return x
"""

SCRIPT = """
import sys
from dataclasses import dataclass

import helper
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


@jax.tree_util.register_dataclass
@dataclass
class State:
    weight: jax.Array
    steps: jax.Array


def kernel(x_vmem, out_vmem):
    out_vmem[...] = x_vmem[...] + 1


def add_one(x):
    interpret = jax.devices()[0].platform != "tpu"  # a script that knows no `systolic run`
    spec = pl.BlockSpec((128, x.shape[1]), lambda i: (i, 0))
    call = pl.pallas_call(kernel, out_shape=x, grid=(2,), in_specs=[spec], out_specs=spec, interpret=interpret)
    return call(x)


@jax.jit
def step(state, x):
    return State(state.weight + helper.repeated(add_one(x), times=2), state.steps + 1)


state = State(jnp.zeros((256, 256)), jnp.int32(0))
x = jnp.zeros((256, 256))
for _ in range(int(sys.argv[1])):
    state = step(state, x[:256, :128] if sys.argv[2] == "wrong" else x)
helper.repeated(x, times=3)
print("steps", state.steps, "weight", state.weight[0, 0])
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("helper.py").write_text(HELPER)
    Path("script.py").write_text(SCRIPT)


@pytest.mark.exhaustive
@pytest.mark.parametrize("no_values", [False, True])
def test_a_script_is_timed_by_call(no_values: bool, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--trace", "calls.json", "--json", "run.json", "-q", *["--no-values"] * no_values]
    assert main(["run", "script.py", "--chip", "v6e", *options, "--", "3", "0"]) == 0
    printed = capsys.readouterr().out
    assert f"steps {0 if no_values else 3} weight {0.0 if no_values else 3.0}" in printed
    document = json.loads(Path("run.json").read_text())
    rows = {(row["function"], row["arguments"]): row for row in document["rows"]}
    of_step = rows["step", "f32[256,256], s32[], f32[256,256]"]
    repeated = rows["repeated", "f32[256,256], times=3"]
    assert (of_step["calls"], repeated["calls"]) == (3, 1)
    assert document["summary"]["total_us"] == pytest.approx(3 * of_step["time_us"] + repeated["time_us"])
    assert any(op["is_pallas"] for core in of_step["run"]["cores"] for op in core["ops"])  # it was not interpreted
    calls = [event for event in json.loads(Path("calls.json").read_text())["traceEvents"] if event.get("cat") == "call"]
    assert [event["name"] for event in calls] == ["step", "step", "step", "repeated"]
    assert calls[1]["ts"] == pytest.approx(of_step["time_us"])


@pytest.mark.exhaustive
def test_the_script_decides_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "script.py", "--chip", "v6e", "--", "1", "3"]) == 3
    assert main(["run", "script.py", "--chip", "v6e", "-q", "--", "1", "wrong"]) == 1
    printed = capsys.readouterr()
    assert 'File "script.py"' in printed.err
    assert "running/recording.py" not in printed.err
    assert "TypeError" in printed.err or "ValueError" in printed.err
    assert "repeated" in printed.out  # the table of what ran before


@pytest.mark.exhaustive
def test_the_time_is_that_of_simulate() -> None:
    import jax
    import jax.numpy as jnp

    x = jnp.ones((512, 512), jnp.bfloat16)
    with systolic.record("v5e", values=False) as recording:
        product = jax.jit(lambda x, y: x @ y)
        product(x, x)
        jax.jit(lambda x, y: x + y)(x, x)  # by name and arguments the same
    program, other = recording.result().programs
    assert other.status == "ok"
    assert program.time_us == systolic.simulate(lambda x, y: x @ y, x, x, chip="v5e").time_us
    assert program.time_us is not None
    assert " ms on v5e in 2 calls" in str(recording.result())


SHARDED = """
import functools
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import systolic

FOUR = (AxisType.Auto,)


def product(x, w):
    return jnp.sum(x @ w, axis=0)


def arguments(mesh, make):
    cut, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    return make((512, 512), cut), make((512, 256), whole)


with systolic.record("v6e", topology="2x2") as recording:
    mesh = jax.make_mesh((4,), ("data",), axis_types=FOUR)
    jax.jit(product)(*arguments(mesh, lambda shape, place: jax.device_put(jnp.ones(shape, jnp.bfloat16), place)))
(program,) = recording.result().programs
assert program.step is not None, program.reason
there = systolic.slice_mesh("v6e", "2x2", data=4)
shapes = arguments(there, lambda shape, place: jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place))
run = systolic.simulate(product, *shapes, chip="v6e", topology="2x2")
assert run.time_us == program.time_us, (run.time_us, program.time_us)
assert program.step.devices == 4 and " ms on v6e 2x2 in 1 calls" in str(recording.result())
"""


@pytest.mark.exhaustive
def test_the_time_on_a_slice_is_that_of_simulate(tmp_path: Path) -> None:
    run_on_virtual_devices(SHARDED, tmp_path)


@pytest.mark.exhaustive
def test_the_sharded_example_runs_on_a_slice(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "train_sharded.py"
    command = [
        sys.executable,
        "-m",
        "systolic",
        "run",
        str(example),
        "--chip",
        "v6e",
        "--topology",
        "2x2",
        "--no-values",
    ]
    done = subprocess.run([*command, "--", "--model", "2"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "slice 2x2" in done.stdout
    (step,) = (line.split() for line in done.stdout.splitlines() if line.startswith("train_step"))
    assert "bf16[512,512]@data,-" in step
    assert "step 2: loss 0.0000" in done.stdout


@pytest.mark.exhaustive
def test_a_script_that_wants_several_devices_is_told_how_to_get_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("sharded.py").write_text("import jax\njax.make_mesh((64,), ('data',))\n")
    assert main(["run", "sharded.py", "--chip", "v6e", "-q"]) == 1
    assert "give it a slice with --topology" in capsys.readouterr().err
    assert main(["run", "sharded.py", "--chip", "v6e", "--topology", "8x8", "-q"]) == 2
    assert "a slice 8x8 of v6e has 64 devices, and JAX has started with" in capsys.readouterr().err
