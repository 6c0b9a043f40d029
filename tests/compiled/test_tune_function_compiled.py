"""`systolic tune` over static arguments of somebody's function, with the real compiler."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import systolic
from systolic.cli import main
from systolic.store import TrialStore

pytestmark = pytest.mark.fresh_workers  # a worker reads a file once, and a test here changes its file

SOURCE = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

def double(x, *, rows=8, unused=0, whole=False):
    def kernel(x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...] * {factor}
    block = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct((x.shape[0] * (1 + whole), x.shape[1]), x.dtype)
    return pl.pallas_call(kernel, grid=(shape.shape[0] // rows,), in_specs=[block], out_specs=block,
                          out_shape=shape)(x)
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "tuned-functions"))


@pytest.mark.exhaustive
def test_it_leaves_out_what_is_wrong_keeps_the_rest_and_sees_a_change(tmp_path: Path) -> None:
    file, target = tmp_path / "kernel.py", tmp_path / "tuned.json"
    file.write_text(SOURCE.format(factor=2))
    command = ["tune", f"{file}:double", "--arg", "f32[512,256]", "--over", "rows=8,12,100,128,256"]
    command += ["--over", "whole=False,True", "--over", "unused=0,1", "--chip", "v5e", "-q"]
    command += ["--store", str(tmp_path / "trials.sqlite"), "--json", str(target)]
    assert main(command) == 0
    (row,) = json.loads(target.read_text())["rows"]
    # 12 and 100 rows break a rule, `whole` changes the result, `unused` nothing: three programs are left.
    assert (row["considered"], row["compiled"], len(row["left_out"])) == (3, 3, 5 * 2 * 2 - 3)
    assert {each["keywords"]["rows"] for each in row["trials"]} == {"8", "128", "256"}
    times = {each["keywords"]["rows"]: each["time_us"] for each in row["trials"]}
    assert row["winner"]["time_us"] == min(times.values()) < times["8"]
    assert row["default"]["keywords"]["rows"] == "8"
    assert row["speed_ratio_to_default"] == pytest.approx(times["8"] / min(times.values()))
    # Nothing is tried twice; where the function's source has changed, all of it is.
    assert main(command) == 0
    assert json.loads(target.read_text())["rows"][0]["compiled"] == 0
    file.write_text(SOURCE.format(factor=3))
    assert main(command) == 0
    assert json.loads(target.read_text())["rows"][0]["compiled"] == 3


@pytest.mark.exhaustive
def test_a_callable_is_tuned_as_well(tmp_path: Path) -> None:
    def add(x: jax.Array, y: jax.Array, *, rows: int) -> jax.Array:
        def kernel(x_vmem, y_vmem, out_vmem):
            out_vmem[...] = x_vmem[...] + y_vmem[...]

        block = pl.BlockSpec((rows, 256), lambda i: (i, 0))
        return pl.pallas_call(kernel, grid=(512 // rows,), in_specs=[block] * 2, out_specs=block, out_shape=x)(x, y)

    x = jax.ShapeDtypeStruct((512, 256), jnp.float32)
    store = TrialStore(tmp_path / "trials.sqlite")
    found = systolic.tune(add, x, x, over={"rows": (8, 256)}, chip="v5e", store=store)
    # As it is it cannot be called at all: `rows` has no default.
    assert (found.default, found.speed_ratio, found.keywords) == (None, None, {"rows": 256})
    assert found.left_out[0].keywords == ()
    assert found.partial.keywords == {"rows": 256}


@pytest.mark.exhaustive
def test_a_function_without_a_pallas_call_is_tuned_without_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, target = tmp_path / "plain.py", tmp_path / "tuned.json"
    file.write_text(
        "import jax.numpy as jnp\n"
        "def squared(x, *, parts=1):\n"
        "    return jnp.concatenate([part @ x for part in jnp.split(x, parts)])\n"
    )
    command = ["tune", f"{file}:squared", "--arg", "f32[256,256]", "--over", "parts=1,2,3", "--chip", "v5e", "-q"]
    command += ["--store", str(tmp_path / "trials.sqlite")]
    assert main([*command, "--json", str(target)]) == 0
    assert "2 of them call no Pallas kernel: no model ranks these" in " ".join(capsys.readouterr().out.split())
    (row,) = json.loads(target.read_text())["rows"]
    times = {each["keywords"]["parts"]: each["time_us"] for each in row["trials"]}
    assert set(times) == {"1", "2"}  # 256 rows are not cut into three parts
    assert row["winner"]["time_us"] == min(times.values()) > 0
    assert {each["modelled_us"] for each in row["trials"]} == {None}
    assert row["unmodelled_trials"] == 2
    assert main([*command, "--json", str(target)]) == 0  # from the store
    assert json.loads(target.read_text())["rows"][0]["compiled"] == 0
