"""`systolic simulate` and `systolic validate` on the command line, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from systolic.chips import chip
from systolic.cli.main import main
from systolic.simulator import SimulatedRun
from systolic.validation.published import COLUMNS

KERNELS = """
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def picked(index, x):
    def kernel(index_smem, x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...] * 2

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((512, 1024), lambda i, index: (index[i], 0))],
        out_specs=pl.BlockSpec((512, 1024), lambda i, index: (i, 0)),
    )
    return pl.pallas_call(kernel, out_shape=x, grid_spec=spec)(index, x)


def plain(index, x):
    return x * 2


def broken(index, x):
    raise RuntimeError("nothing to see")


def greedy(index, x):
    return pl.pallas_call(lambda x, o: o.__setitem__(..., x[...]), out_shape=x)(x)
"""


@pytest.fixture
def kernels(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "command-programs"))
    (tmp_path / "kernels.py").write_text(KERNELS)
    return str(tmp_path / "kernels.py")


def arguments(*values: str) -> list[str]:
    return [word for value in values for word in ("--arg", value)]


def test_one_function_on_two_chips(kernels: str, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["simulate", f"{kernels}:picked", *arguments("s32[4]=2,2,2,0", "f32[32768,1024]"), "--json", "-", "-q"]
    assert main([*call, "--chip", "v5e,v6e"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "simulate"
    assert [(row["chip"], row["status"], row["provenance"]) for row in document["rows"]] == [
        ("v5e", "ok", "simulated"),
        ("v6e", "ok", "simulated"),
    ]
    for row in document["rows"]:
        assert row["hbm_read_bytes"] == pytest.approx(2 * 512 * 1024 * 4, abs=4096)
        assert row["hbm_written_bytes"] == 4 * 512 * 1024 * 4
        run = SimulatedRun.from_json(json.dumps(row["run"]))
        assert (run.time_us, run.stalls) == (row["time_us"], row["stalls"])


def test_a_chip_in_another_clock_state_with_a_flag(kernels: str, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["simulate", f"{kernels}:plain", *arguments("s32[4]=2,2,2,0", "f32[2048,1024]"), "--json", "-", "-q"]
    flag = {"xla_tpu_scoped_vmem_limit_kib": "16384"}
    assert main([*call, "--chip", "v7x,v7x@p7", "--xla-flag", "xla_tpu_scoped_vmem_limit_kib=16384"]) == 0
    usual, highest = json.loads(capsys.readouterr().out)["rows"]
    assert (usual["chip"], usual["flags"]) == ("v7x", flag)
    assert (highest["chip"], highest["flags"]) == ("v7x@p7", {"xla_tpu_dvfs_p_state": "7", **flag})
    assert highest["run"]["flags"] == highest["flags"]
    assert (usual["run"]["clock_hz"], highest["run"]["clock_hz"]) == tuple(
        state.clock_hz for state in chip("v7x").clock_states
    )
    # Only copies between HBM and VMEM cross from one clock to the other.
    assert usual["cycles"] < highest["cycles"] < usual["cycles"] * highest["run"]["clock_hz"] / usual["run"]["clock_hz"]


def test_a_flag_that_the_compiler_does_not_know_is_a_wrong_call(
    kernels: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("simulate", "check", "explain"):
        call = [command, f"{kernels}:plain", *arguments("s32[4]=2,2,2,0", "f32[8,128]"), "-q", "--chip", "v5e"]
        assert main([*call, "--xla-flag", "xla_tpu_no_such_flag=1"]) == 2
        said = capsys.readouterr().err
        assert "xla_tpu_no_such_flag=1: No such compile option" in said
        assert len(said.splitlines()) == 1


@pytest.mark.exhaustive
def test_against_another_function_with_a_trace(
    kernels: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = arguments("s32[4]=0,1,2,3", "f32[2048,1024]")
    trace = tmp_path / "run.json"
    call = ["simulate", f"{kernels}:picked", "--against", f"{kernels}:plain", *values, "--trace", str(trace)]
    assert main([*call, "--chip", "v5e", "-q"]) == 0
    out = capsys.readouterr().out
    assert "× as fast as" in out
    assert "simulated" in out
    document = json.loads(trace.read_text())
    copies = [
        event for event in document["traceEvents"] if event.get("cat") == "copy" and event["args"]["bytes"] >= 1 << 20
    ]
    assert len(copies) == 8


def test_a_trace_for_xprof_has_the_operations_of_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, trace = str(tmp_path / "run.json"), str(tmp_path / "run.xplane.pb")
    call = ["simulate", "jax.numpy:matmul", *arguments("bf16[512,512]", "bf16[512,512]"), "--chip", "v5e"]
    assert main([*call, "--json", result, "--trace", trace, "-q"]) == 0
    capsys.readouterr()
    assert main(["compare", result, trace, "--json", "-", "--fail-above", "0.1"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["module"].startswith("jit_matmul(")
    assert row["device_type"] == "TPU v5 Lite"
    products = [op for op in row["operations"] if op["category"] == "convolution fusion"]
    assert products
    assert {op["paired_by"] for op in row["operations"]} == {"name"}
    assert all(op["ratio"] == pytest.approx(1, abs=1e-3) for op in row["operations"])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("function", "values", "says"),
    [
        ("broken", ("s32[4]", "f32[8,128]"), "RuntimeError: nothing to see"),
        ("greedy", ("s32[4]", "f32[16384,1024]"), "refused: "),
        (
            "picked",
            ("s32[4]", "f32[2048,1024]"),
            "argument index, of which only the shape was given, which decides",
        ),
        ("picked", ("s32[4]", "f32[2048,1024]"), 'Give its values, such as --arg "s32[4]=0,1,2,3", or state typical'),
    ],
)
def test_an_answer_of_no(
    kernels: str, function: str, values: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", f"{kernels}:{function}", *arguments(*values), "--chip", "v5e", "-q"]) == 1
    out, err = capsys.readouterr()
    assert says in " ".join(out.split())
    assert "Traceback" not in out + err


def test_a_function_that_is_not_there(kernels: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", f"{kernels}:missing", "--chip", "v5e", "-q"]) == 2
    assert "it has picked, plain, broken, greedy" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_validate(kernels: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = "float32,float32,float32"
    lines = (
        f"somebody,v5e,xla,512,512,512,{same},,,,125,wall_clock,",
        f"somebody,v5e,ladder_v5_rhs_transposed,512,512,512,{same},256,256,256,30,device,",
        f"somebody,v5e,sorcery,512,512,512,{same},,,,3,device,",
    )
    csv = tmp_path / "times.csv"
    csv.write_text("\n".join([",".join([*COLUMNS, "notes"]), *lines]) + "\n")
    page, plot = tmp_path / "trust.md", tmp_path / "trust.png"
    call = ["validate", str(csv), "--json", "-", "--page", str(page), "--plot", str(plot), "-q"]
    assert main(call) == 0
    document = json.loads(capsys.readouterr().out)
    known, transposed, unknown = document["rows"]
    assert known["error"] == pytest.approx(known["predicted_us"] / 10 - 1)
    assert (known["published_us"], transposed["error"]) == (125, transposed["predicted_us"] / 30 - 1)
    assert (unknown["predicted_us"], unknown["counted"]) == (None, False)
    assert "sorcery" in unknown["reason"]
    assert document["summary"]["v5e"]["rows"] == 2
    assert "sorcery" in (tmp_path / "trust" / "not_counted.md").read_text()
    assert plot.stat().st_size > 1000
