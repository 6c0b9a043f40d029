"""`systolic bench` without the compiler: in its place, times that are arithmetic."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from bench_times import answered

import systolic.cli.bench
import systolic.timing.runner
from systolic.chips import chip
from systolic.timing import Measurement

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def labels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return answered(monkeypatch)


def rows_of(out: str) -> dict[tuple[str, str], dict[str, Any]]:
    document = json.loads(out)
    assert set(document) == {"command", "schema", "versions", "rows", "summary"}
    assert document["command"] == "bench"
    return {(row["chip"], row["case"]): row for row in document["rows"]}


def test_every_case_is_a_row_with_its_times_or_its_reason(run: Run) -> None:
    code, out, _ = run("bench", "--suite", "square", "--chip", "v5e,v6e", "--json", "-", "-q")
    rows = rows_of(out)
    assert code == 1  # two sizes have no time
    assert len(rows) == 12
    assert rows["v5e", "512³"]["status"] == "refused"
    assert rows["v5e", "512³"]["reason"] == "no room"
    assert rows["v6e", "1024³"]["status"] == "illegal"
    assert "tile_m" in rows["v6e", "1024³"]["reason"]
    assert rows["v6e", "1024³"]["ours_us"] is None
    assert rows["v6e", "1024³"]["xla_us"] == pytest.approx(1024 * 1.03, rel=1e-3)
    assert rows["v6e", "2048³"]["xla_reason"] == "refused: XLA said no"
    assert rows["v6e", "2048³"]["ratio"] is None
    whole = rows["v5e", "4096³"]
    assert whole["provenance"] == "simulated"
    assert whole["ratio"] == pytest.approx(1.03, rel=1e-3)
    assert whole["ratio_with_prefetch"] == pytest.approx(1.03 * 1.1, rel=1e-3)
    assert whole["hbm_bytes"] == 4000


def test_xla_is_no_faster_than_hbm_allows_in_repeated_calls(run: Run) -> None:
    """A weight of 117 MB that was copied into VMEM ahead of the call has crossed HBM all the same."""
    arguments = ("bench", "--suite", "fused", "--only", "residual 16·", "--json", "-", "-q")
    row = rows_of(run(*arguments)[1])["v5e", "residual 16·4096·14336"]
    assert row["xla_us"] == pytest.approx(16 * 1.03, rel=1e-3)
    assert row["xla_us"] < row["model_hbm_us"] < row["xla_us"] + row["xla_prefetch_us"]
    assert row["xla_repeated_us"] == row["model_hbm_us"]
    assert row["ratio"] == pytest.approx(row["model_hbm_us"] / row["ours_us"])
    assert row["ratio_alone"] == pytest.approx(1.03, rel=1e-3)
    (large,) = rows_of(run("bench", "--only", "16384", "--json", "-", "-q")[1]).values()
    assert large["model_hbm_us"] < large["xla_us"] == large["xla_repeated_us"]
    (short,) = rows_of(
        run("bench", "--suite", "llm", "--only", "llama3-70b o 1", "--chip", "v5e", "--json", "-", "-q")[1]
    ).values()
    assert short["xla_repeated_us"] == pytest.approx(short["xla_us"] + short["xla_prefetch_us"])


def test_the_fastest_of_several_forms_of_xla_counts(run: Run) -> None:
    only = "int4 llama3-70b,int4 llama3-8b"
    arguments = ["bench", "--suite", "quantized", "--only", only, "--rows", "128,256", "--chip", "v6e", "-q"]
    rows = rows_of(run(*arguments, "--json", "-")[1])
    assert {case.rpartition(" ")[0] for _, case in rows} == {"int4 llama3-70b down", "int4 llama3-8b gate"}
    usual, other = (rows["v6e", f"int4 llama3-70b down {m}"] for m in (128, 256))
    assert (usual["xla_form"], other["xla_form"]) == ("", "dequantized")
    assert usual["ratio_alone"] == pytest.approx(1.03, rel=1e-3)
    assert other["ratio_alone"] == pytest.approx(0.5, rel=1e-3)
    shown = run(*arguments)[1]
    assert "dequantized" in shown
    assert "of the model's limit" in shown


def test_limits_are_published_and_the_model_s(run: Run) -> None:
    _, out, _ = run("bench", "--only", "4096", "--chip", "v7x", "--json", "-", "-q")
    (row,) = rows_of(out).values()
    known = chip("v7x")
    assert row["mxu_us"] == pytest.approx(2 * 4096**3 / known.peak_ops_per_s("bfloat16") * 1e6)
    assert row["hbm_us"] == pytest.approx(3 * 2 * 4096**2 / known.hbm_bytes_per_s * 1e6)
    assert row["limit_us"] == row["mxu_us"]
    assert row["share"] == pytest.approx(row["mxu_us"] / row["ours_us"])
    # Two units of 256 × 256 that take two rows a cycle.
    per_s = 2 * 2 * 256 * 256 * 2 * known.machine.clock_hz
    assert row["model_mxu_us"] == pytest.approx(2 * 4096**3 / per_s * 1e6)
    assert row["model_hbm_us"] == pytest.approx(3 * 2 * 4096**2 / known.machine.hbm_bytes_per_s * 1e6)
    assert row["share_of_model"] == pytest.approx(row["model_mxu_us"] / row["ours_us"])


def test_float32_at_highest_has_six_passes(run: Run) -> None:
    arguments = ("bench", "--only", "8192", "--dtype", "float32", "--json", "-", "-q")
    (once,) = rows_of(run(*arguments)[1]).values()
    (six,) = rows_of(run(*arguments, "--precision", "highest")[1]).values()
    assert six["mxu_us"] == pytest.approx(6 * once["mxu_us"])
    assert six["model_mxu_us"] == pytest.approx(6 * once["model_mxu_us"])


@pytest.mark.exhaustive
def test_edges_have_the_next_even_size_beside_them(run: Run, labels: list[str]) -> None:
    code, out, _ = run("bench", "--suite", "edges", "--chip", "v5e", "--against", "nothing", "--json", "-", "-q")
    rows = rows_of(out)
    assert code == 1
    assert not [label for label in labels if label.endswith("xla")]
    assert rows["v5e", "4000³"]["over_even"] == pytest.approx(1.3 * 4000 / 4096, rel=1e-3)
    assert rows["v5e", "1000³"]["status"] == "crashed"
    assert "SIGABRT" in rows["v5e", "1000³"]["reason"]
    assert rows["v5e", "1023³"]["even_reason"].startswith("illegal")
    missed = {(bar["bar"], bar["case"]) for bar in json.loads(out)["summary"]["bars"] if not bar["holds"]}
    assert ("× the next even size, at most", "4000³") in missed
    assert ("of the time outside the kernel, at most", "3000³") in missed


def test_layers_of_experts_are_drawn(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "groups.png"
    arguments = ("bench", "--suite", "moe", "--only", "qwen3-30b forward", "--rows", "256,64", "--plot", str(target))
    _, _, err = run(*arguments)
    assert target.read_bytes().startswith(b"\x89PNG")
    assert "qwen3-30b forward skewed on v5e" in err
    assert (
        "no row of suite moe, quantized, sparse"
        in run("bench", "--only", "8192", "--plot", str(tmp_path / "none.png"))[2]
    )
    assert not (tmp_path / "none.png").exists()


def test_layers_of_experts_are_raced_with_public_kernels(run: Run, labels: list[str]) -> None:
    arguments = ("bench", "--suite", "moe", "--only", "mixtral-8x7b", "--rows", "4096", "--json", "-", "-q")
    rows = rows_of(run(*arguments)[1])
    assert {name.split()[1] for _, name in rows} == {"forward", "dlhs", "drhs", "gated"}
    row = rows["v5e", "mixtral-8x7b forward 4096 skewed"]
    peers = {peer["name"]: peer["time_us"] for peer in row["peers"]}
    assert (row["best_peer_us"], row["ratio_best_peer"]) == (min(filter(None, peers.values())), 1.0)
    assert peers[row["best_peer"]] == row["best_peer_us"]
    assert [name for name in peers if name.startswith("megablox")]
    assert all(peer["time_us"] is not None or peer["reason"] for peer in row["peers"])
    assumed = rows["v5e", "mixtral-8x7b drhs 4096 skewed"]
    assert assumed["ratio_alone"] == pytest.approx(1.03, rel=1e-3), "without it a slower form would count"
    assert assumed["xla_assumption"] == "a bound"
    assert "XLA is timed with an assumption: a bound" in run(*arguments[:-3], "-q")[1]
    bars = {(bar["group"], bar["bar"]) for bar in json.loads(run(*arguments)[1])["summary"]["bars"]}
    assert ("hundreds of rows", "of the model's limit, geometric mean, at least") in bars
    assert ("moe", "× XLA, geometric mean, at least") in bars
    labels.clear()
    run(*arguments, "--against", "xla")
    assert not [label for label in labels if label.split()[-1] not in ("ours", "xla")]
    code, _, err = run("bench", "--suite", "moe", "--rows", "17")
    assert code == 2
    assert "--rows 17: there are cases of 64" in err


def test_a_peer_whose_time_rests_on_an_assumption_is_marked(run: Run) -> None:
    arguments = ("bench", "--suite", "sparse", "--only", "dsd random 128² 0.05", "-q")
    _, out, _ = run(*arguments, "--format", "markdown")
    assert "| gather (assumed) | 0.90 |" in out
    assert "v5e gather is timed with an assumption: its places \\[dsd random 128² 0.05 16384³\\]" in out
    (row,) = rows_of(run(*arguments, "--json", "-")[1]).values()
    assert {peer["name"]: peer["assumption"] for peer in row["peers"]} == {"jax docs": "", "gather": "its places"}


def test_the_same_program_is_compiled_once(run: Run, labels: list[str]) -> None:
    run("bench", "--suite", "square,square,edges", "--only", "4000", "--chip", "v5e,v5e", "-q")
    assert sorted(label.split()[-1] for label in labels) == ["ours", "ours", "xla", "xla"]


def test_xla_is_raced_with_more_vmem_and_the_faster_counts(run: Run, labels: list[str]) -> None:
    flag = {"xla_tpu_scoped_vmem_limit_kib": "65536"}
    rows = rows_of(run("bench", "--chip", "v6e,v7x,v4", "--only", "8192", "--json", "-", "-q")[1])
    assert [row["xla_flags"] for row in rows.values()] == [flag, flag, {}]  # a v4 has not so much
    assert rows["v6e", "8192³"]["ratio_alone"] == pytest.approx(0.9, rel=1e-3)
    assert rows["v6e", "8192³"]["xla_without_flags_us"] == pytest.approx(8192 * 1.03, rel=1e-3)
    (same,) = rows_of(run("bench", "--chip", "v6e", "--only", "16384", "--json", "-", "-q")[1]).values()
    assert (same["xla_flags"], same["xla_without_flags_us"]) == ({}, None)
    assert "xla_tpu_scoped_vmem_limit_kib=65536 too" in run("bench", "--chip", "v6e", "--only", "8192", "-q")[1]
    labels.clear()
    run("bench", "--chip", "v6e", "--only", "8192", "-q", "--xla-flag", "xla_tpu_scoped_vmem_limit_kib=1024")
    assert sorted(label.split()[-1] for label in labels) == ["ours", "xla"]


def test_what_a_chip_does_not_multiply_is_a_row(run: Run, labels: list[str]) -> None:
    code, out, _ = run("bench", "--only", "4096", "--dtype", "int8", "--chip", "v4", "-q")
    assert code == 1
    assert labels == []
    assert "ours is unsupported: v4 has no matrix multiplication of int8; it takes float32, bfloat16 [4096³]" in out


def test_the_verdict_comes_first_and_a_missed_bar_is_no_failure(run: Run) -> None:
    arguments = ("bench", "--only", "16384", "-q")
    code, out, _ = run(*arguments)
    assert code == 0
    lines = out.splitlines()
    assert "times are simulated" in lines[0]
    assert lines[1] == "1 rows, geometric mean 1.030 × XLA's speed, worst 1.03 at v5e 16384³"
    assert "bundles of code" not in out
    code, out, _ = run(*arguments, "--strict")
    assert code == 1
    assert out.splitlines()[1].endswith(", 1 of 5 bars missed")
    assert "v5e square: 20,000 at 16384³; bundles of code, at most 16,000 (1 of 1 rows)" in out
    assert run("bench", "--suite", "edges", "--only", "5000³", "--strict", "-q")[0] == 0


EIGHT_EXPERT_DEVICES = ("--chip", "v6e", "--topology", "2x4", "--mesh", "expert=8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("bench", "--suite", "sqare"),
            "'sqare' is unknown; did you mean square? choose from square, llm, fused, edges, layers",
        ),
        (("bench", "--only", "nothing like this"), "no case of square is called so, such as 512³"),
        (("bench", "--only", "1024³, 1025³"), "--only 1025³: no case of square is called so"),
        (
            ("bench", "--suite", "moe-layer", "--only", "layer and gradients", *EIGHT_EXPERT_DEVICES),
            "and gradients 2048 runs on one device: leave --topology and --mesh out, or pick layers without gradients",
        ),
        (("bench", "--precision", "high"), "--precision high is for float32 only"),
        (("bench", "--dtype", "float16"), "float16"),
        (("bench", "--against", "cublas"), "cublas"),
        (("bench", "--from", "/nothing/here.json"), "does not exist"),
        (("plan", "512,512"), "'512,512': give three whole numbers M,K,N"),
        (("plan", "512,512,0"), "give three whole numbers"),
        (("plan", "512,512,512", "--activation", "swoosh"), "activation='swoosh' is unknown; did you mean swish?"),
        (("plan", "512,512,512", "--dtype", "int8", "--chip", "v4"), "v4 has no matrix multiplication of int8"),
        (("plan", "512,512,512", "--precision", "highest"), "--precision highest is for float32 only"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err


def test_help_has_an_example(run: Run) -> None:
    code, out, _ = run("bench", "--help")
    assert code == 0
    assert "  systolic bench " in out


def test_ctrl_c_shows_and_keeps_what_is_finished(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Interrupted(Future[Measurement]):
        def result(self, timeout: float | None = None) -> Measurement:
            raise KeyboardInterrupt

    submit: Any = systolic.timing.runner.submit_simulation

    def submitted(*args: Any, label: str, **options: Any) -> Future[Measurement]:
        return Interrupted() if f"{late}³" in label else submit(*args, label=label, **options)

    monkeypatch.setattr(systolic.timing.runner, "submit_simulation", submitted)
    late = "4096"
    target = tmp_path / "rows.json"
    code, out, err = run("bench", "--suite", "square", "--chip", "v6e", "--against", "nothing", "--json", str(target))
    assert code == 130
    assert {row for _, row in rows_of(target.read_text())} == {"512³", "1024³", "2048³", "8192³", "16384³"}
    assert "8192³" in out
    assert "stopped: 5 of 6 rows are finished; the same command compiles only the others" in err
    late = ""  # none had ended
    code, out, err = run("bench", "--suite", "square", "--chip", "v6e", "--against", "nothing", "--json", str(target))
    assert (code, out, err.splitlines()[-1]) == (130, "", "stopped")
