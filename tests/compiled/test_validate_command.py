"""`systolic validate` and `systolic calibrate` with the real compiler, on the smallest of files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from systolic.chips import chip
from systolic.cli import main
from systolic.cost import roofline
from systolic.spec import MatmulSpec
from systolic.validation.published import COLUMNS

Command = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def command(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(cache))

    def run(name: str, rows: list[dict[str, object]], *arguments: str) -> tuple[int, dict[str, Any]]:
        file = tmp_path / "published.csv"
        with file.open("w", newline="") as target:
            writer = csv.DictWriter(target, [*COLUMNS, "notes"], restval="")
            writer.writeheader()
            writer.writerows(rows)
        result = tmp_path / "result.json"
        code = main([name, str(file), *arguments, "--json", str(result), "-q"])
        return code, json.loads(result.read_text())

    return run


def row(op: str, m: int, k: int, n: int, dtype: str = "bfloat16", **changes: object) -> dict[str, object]:
    made: dict[str, object] = {"source": "me", "chip": "v5e", "op": op, "m": m, "k": k, "n": n}
    made |= {"dtype_lhs": dtype, "dtype_rhs": dtype, "dtype_out": "int32" if dtype == "int8" else dtype}
    return {**made, "time_us": 500, "timing": "device", **changes}


TILES: dict[str, Any] = {"tile_m": 128, "tile_k": 128, "tile_n": 256}


@pytest.mark.exhaustive
def test_a_small_file(command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    code, document = command(
        "validate",
        [
            row("xla", 512, 512, 512),
            row("block_matmul_f32_scratch", 256, 384, 512, dtype_out="float32", **TILES),
            row("block_matmul_f32_scratch_rhs_transposed_relu", 256, 384, 512, "int8", **TILES),
            row("xla_rhs_transposed", 512, 512, 512, "int8", timing="wall_clock"),
            row("ladder_v1", 2048, 2048, 2048, "float32"),
            row("ladder_v5", 256, 384, 512, tile_m=100, tile_k=128, tile_n=128),
            row("ladder_v5", 256, 384, 512, "int8", chip="v4", **TILES),
        ],
    )
    rows = document["rows"]
    assert code == 0
    for one in rows[:4]:
        spec = MatmulSpec(**{name: one[name] for name in ("m", "k", "n", "dtype_lhs", "dtype_rhs", "dtype_out")})
        assert one["counted"]
        assert one["provenance"] == "simulated"
        # No product beats arithmetic; XLA may keep an operand in VMEM from the call before, so only peak is a bound.
        assert one["predicted_us"] > spec.flops / chip("v5e").peak_ops_per_s(spec.dtype_lhs) * 1e6
        left_us = 500 - 115 * (one["timing"] == "wall_clock")
        assert one["error"] == pytest.approx(one["predicted_us"] / left_us - 1)
    assert [one["predicted_us"] for one in rows[4:]] == [None] * 3
    for one, said in zip(
        rows[4:], ["vmem", "the last 56 of m would be lost", "Unsupported matmul RHS type"], strict=True
    ):
        assert said in one["reason"]
    kernel = MatmulSpec.of(256, 384, 512, "bfloat16", "float32")
    assert rows[1]["predicted_us"] > roofline(kernel, chip("v5e")).least_us
    out = capfd.readouterr().out
    assert "7 rows: 4 counted, 3 not" in out


@pytest.mark.exhaustive
def test_constants_that_made_the_times_are_found_again(command: Command, tmp_path: Path) -> None:
    """Times simulated with other constants stand in for published ones: the whole way there and back."""
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps({"chip": "v5e", "constants": {"hbm_bytes_per_s": 0.6e12, "dma_latency_cycles": 1100}}))
    rows = [
        row("ladder_v5", 256, 512, 256, tile_m=128, tile_k=128, tile_n=128),
        row("ladder_v5", 512, 512, 512, tile_m=128, tile_k=128, tile_n=128),
        row("ladder_v5", 512, 512, 512, tile_m=256, tile_k=256, tile_n=256),
        row("ladder_v5", 512, 1024, 512, tile_m=512, tile_k=256, tile_n=512),
        row("ladder_v4", 512, 512, 1024, "float32", tile_m=256, tile_k=256, tile_n=256),
        row("ladder_v4", 128, 2048, 128, "float32", tile_m=128, tile_k=512, tile_n=128),
    ]
    _, document = command("validate", rows, "--constants", str(truth))
    for one, simulated in zip(rows, document["rows"], strict=True):
        one["time_us"] = simulated["predicted_us"]
    _, document = command("validate", rows)
    assert document["summary"]["v5e"]["worst_error"] > 0.02
    fitted = tmp_path / "fitted.json"
    code, document = command(
        "calibrate", rows, "--chip", "v5e", "--fit", "hbm_bytes_per_s,dma_latency_cycles", "--out", str(fitted)
    )
    constants = document["summary"]["constants"]
    assert code == 0
    assert constants["hbm_bytes_per_s"]["fitted"] == pytest.approx(0.6e12, rel=0.02)
    assert constants["dma_latency_cycles"]["fitted"] == pytest.approx(1100, rel=0.02)
    assert document["summary"]["check"]["after"]["worst_error"] < 0.01
    # What `calibrate` saw with its constants is what `validate` simulates with them.
    again = command("validate", rows, "--constants", str(fitted))[1]["rows"]
    assert [one["predicted_us"] for one in again] == [one["predicted_us"] for one in document["rows"]]


OPERATIONS = """\
source,chip,kind,op,m,k,n,batch,dtype_lhs,dtype_rhs,dtype_out,tiles,groups,group_sizes,time_us,timing,software
me,v7x,copy,a.copy(),,,1048576,,bfloat16,,bfloat16,,,,5,bandwidth-derived,"dvfs_p_state=7, jf_bounds_check=false"
me,v7x,copy,a.copy(),,,1048576,,bfloat16,,bfloat16,,,,5,bandwidth-derived,
me,v6e,grouped,megablox gmm,512,256,256,,bfloat16,bfloat16,bfloat16,"(128,128,128)",4,rng,20,device,
me,v6e,attention,"splash attention fwd, causal",1024,128,1024,1 seqs x 2 q heads (1 kv),bfloat16,,,"block 512 (q,kv,\
kv_compute)",,,30,device,
me,v6e,matmul,dot_general,256,256,256,,bfloat16,bfloat16,bfloat16,,,,5,device,p_state 7
"""


@pytest.mark.exhaustive
def test_operations_of_several_kinds_flags_and_clock_states(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(cache))
    file, page = tmp_path / "operations.csv", tmp_path / "trust.md"
    file.write_text(OPERATIONS)
    result = tmp_path / "result.json"
    assert main(["validate", str(file), "--json", str(result), "--page", str(page), "-q"]) == 0
    fast, usual, grouped, attention, flagged = json.loads(result.read_text())["rows"]
    assert [row["chip"] for row in (fast, usual, grouped)] == ["v7x@p7", "v7x", "v6e"]
    # Twice the bytes over the bandwidth are the least of a copy, at any clock.
    least_us = 2 * 2 * 1048576 / chip("v7x").machine.hbm_bytes_per_s * 1e6
    assert least_us < fast["predicted_us"] < usual["predicted_us"] < 3 * least_us
    assert fast["flags"] == {"xla_tpu_dvfs_p_state": "7", "xla_jf_bounds_check": "false"}
    flops = 2 * 512 * 256 * 256 / chip("v6e").peak_ops_per_s("bfloat16") * 1e6
    assert grouped["predicted_us"] > flops
    assert attention["counted"]
    assert flagged["flags"] == {"xla_tpu_dvfs_p_state": "7"}  # a flag of the compiler's, but no state of this chip's
    out = capsys.readouterr().out
    for heading in ("v7x@p7: 1 row", "v7x (clock state p3, the default): 1 row", "v6e: 3 rows"):
        assert heading in out
    assert "| a.copy() (1) | 1048576 | bfloat16 |" in (tmp_path / "trust" / "rows_v7x_p7.md").read_text()
