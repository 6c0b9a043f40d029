"""The ladder's rows, with a pool whose answers are made by hand."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from systolic.chips import chip
from systolic.compiler import CompilerCrash, CompilerRefusal, CompilerTimeout
from systolic.lessons.ladder import RUNGS, v3_block
from systolic.lessons.ladder.runner import Request, run_ladder
from systolic.schedule import Tiles
from systolic.simulator import CoreRun, SimulatedRun, SimulationError
from systolic.timing import Measurement
from systolic.timing.runner import Progress

V5E = chip("v5e")


def measured(time_us: float) -> Measurement:
    core = CoreRun(
        core=0,
        cycles=round(time_us * 1500),
        ops=(),
        copy_stall_cycles=round(time_us * 150),
        copy_overhead_cycles=0,
        matrix_stall_cycles=0,
        matrix_busy_cycles=0,
        hbm_read_bytes=1000,
        hbm_written_bytes=24,
        copies=3,
    )
    run = SimulatedRun(chip="v5e", clock_hz=1.5e9, cores=(core,), prefetch_cycles=1500, matrix_units=4, bundles=7)
    return Measurement(
        chip="v5e", provenance="simulated", time_us=time_us, run=run, jax_version="j", libtpu_version="l", compile_s=1.0
    )


class AnsweringPool:
    """Answers each job by its label, with a time in µs or an exception."""

    def __init__(self, answer: Callable[[str], float | Exception]) -> None:
        self.answer = answer
        self.labels: list[str] = []

    def submit(self, _task: object, /, *_args: Any, label: str = "", **_options: Any) -> Future[Measurement]:
        self.labels.append(label)
        future: Future[Measurement] = Future()
        answer = self.answer(label)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(measured(answer))
        return future


def rows_of(names: str, answer: Callable[[str], float | Exception], **request: Any) -> list[Any]:
    rungs = tuple(RUNGS[name] for name in names.split())
    options = {"chip": V5E, "dtype": "bfloat16", "sizes": (2048,), **request}
    return run_ladder(Request(rungs=rungs, **options), AnsweringPool(answer))  # pyright: ignore[reportArgumentType]


def test_a_row_that_is_ok() -> None:
    (row,) = rows_of("v5", lambda label: 50.0 if label == "xla 2048" else 100.0)
    assert row.status == "ok"
    assert (row.time_us, row.provenance, row.xla_time_us, row.ratio_to_xla) == (100.0, "simulated", 50.0, 0.5)
    assert row.tflops == pytest.approx(2 * 2048**3 / 100e-6 / 1e12)
    assert row.percent_of_peak == pytest.approx(100 * row.tflops / 197)
    assert row.xla_prefetch_us == pytest.approx(1.0)
    assert row.hbm_bytes == 1024
    assert row.stall_share == pytest.approx(0.1)
    assert row.check == "not checked at this size"


def test_the_faster_form_of_xla_is_the_opponent() -> None:
    times = {"xla 2048": 50.0, "xla 2048, 64 MiB of scoped VMEM": 40.0}
    (row,) = rows_of("v5", lambda label: times.get(label, 100.0))
    assert (row.xla_time_us, row.ratio_to_xla) == (40.0, 0.4)
    (row,) = rows_of("v5", lambda label: times.get(label, 100.0), xla_default_flags=True)
    assert (row.xla_time_us, row.ratio_to_xla) == (50.0, 0.5)


def test_int8_is_divided_by_the_peak_of_int8() -> None:
    (row,) = rows_of("v5", lambda _: 100.0, dtype="int8")
    assert row.percent_of_peak == pytest.approx(100 * 2 * 2048**3 / 100e-6 / 394e12)
    assert row.dtype_out == "int32"


def test_a_refusal_keeps_its_bytes_and_what_there_is_to_beat() -> None:
    refusal = CompilerRefusal("no room", kind="vmem", requested_bytes=50_000_000, available_bytes=16 * 2**20)
    (row,) = rows_of("v1", lambda label: 50.0 if label == "xla 2048" else refusal)
    assert (row.status, row.time_us, row.xla_time_us) == ("refused", None, 50.0)
    assert row.vmem_requested_bytes == 50_000_000
    assert row.vmem_available_bytes == 16 * 2**20


@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [
        (CompilerTimeout(label="v3 2048", limit_s=5.0), "timed out", "5"),
        (CompilerCrash(label="v3", exit_code=None, signal_name="SIGABRT", stderr_tail=""), "crashed", "SIGABRT"),
        (SimulationError("line 7: not understood: foo"), "not simulated", "line 7"),
    ],
)
def test_a_failure_is_a_row(failure: Exception, status: str, said: str) -> None:
    (row,) = rows_of("v3", lambda label: 50.0 if label.startswith("xla") else failure)
    assert (row.status, row.time_us) == (status, None)
    assert said in row.reason


def test_a_step_too_long_to_ask_about_is_not_sent() -> None:
    pool = AnsweringPool(lambda _: 50.0)
    request = Request(rungs=(RUNGS["v1"],), chip=V5E, dtype="float32", sizes=(4096,))
    (row,) = run_ladder(request, pool)  # pyright: ignore[reportArgumentType]
    assert row.status == "refused"
    assert (row.vmem_requested_bytes, row.vmem_available_bytes) == (192 * 2**20, 16 * 2**20)
    assert pool.labels == ["xla 4096", "xla 4096, 64 MiB of scoped VMEM"]


def test_an_illegal_row_names_every_rule() -> None:
    tiles = Tiles(tile_m=4096, tile_k=100, tile_n=128)
    (row,) = rows_of("v3", lambda _: 50.0, tiles=tiles)
    assert row.status == "illegal"
    for rule in ("tile-within-matrix", "tile-divides", "tile-alignment"):
        assert rule in row.reason


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda out: np.where(np.arange(out.shape[0])[:, None] == 3, 0, out).astype(out.dtype), "largest error"),
        (lambda out: out[:-1], "float32[127, 128]"),
    ],
)
def test_a_wrong_result_is_wrong(
    spoil: Callable[[np.ndarray], np.ndarray], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def multiply(lhs: np.ndarray, rhs: np.ndarray, **_: object) -> np.ndarray:
        return spoil(lhs @ rhs)

    monkeypatch.setattr(v3_block, "matmul", multiply)
    request = Request(rungs=(RUNGS["v3"],), chip=V5E, dtype="float32", sizes=(128,))
    (row,) = run_ladder(request, AnsweringPool(lambda _: 50.0))  # pyright: ignore[reportArgumentType]
    assert (row.status, row.check) == ("wrong", "wrong")
    assert said.replace(", ", ",").replace(" ", "") in row.reason.replace(", ", ",").replace(" ", "")


def test_a_wrong_result_stays_wrong_when_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v3_block, "matmul", lambda lhs, rhs, **_: 0 * (lhs @ rhs))
    request = Request(rungs=(RUNGS["v3"],), chip=V5E, dtype="float32", sizes=(128,))
    (row,) = run_ladder(request, AnsweringPool(lambda _: CompilerRefusal("no room", kind="vmem")))  # pyright: ignore[reportArgumentType]
    assert row.status == "wrong"
    assert "largest error" in row.reason
    assert "no room" in row.reason


def test_a_sweep_takes_the_fastest_and_says_why() -> None:
    times = {"1024/512/1024": 70.0, "1024/1024/1024": 77.0}
    (row,) = rows_of("v4", lambda label: times.get(label.split()[-1], 100.0), sweep_trials=6)
    assert (row.tile_m, row.tile_k, row.tile_n) == (1024, 512, 1024)
    assert row.time_us == 70.0
    assert row.reason.startswith("1024/512/1024 won of 6 simulated, 10.0 % before 1024/1024/1024")
    assert len(row.trials) == 6


def test_a_sweep_in_which_all_are_refused() -> None:
    (row,) = rows_of(
        "v4", lambda label: 50.0 if "xla" in label else CompilerRefusal("no room", kind="other"), sweep_trials=3
    )
    assert row.status == "refused"
    assert "all 3 candidates were refused" in row.reason
    assert "no room" in row.reason


class Telling(Progress):
    """Writes down what it is told."""

    def __init__(self, order: list[str]) -> None:
        self.order = order

    def planned(self, jobs: int) -> None:
        self.order.append(f"planned {jobs}")

    def done(self, label: str) -> None:
        self.order.append(f"done {label}")


def test_progress_is_told_before_anything_is_sent() -> None:
    order: list[str] = []
    pool = AnsweringPool(lambda label: order.append(f"sent {label}") or 1.0)
    request = Request(rungs=(RUNGS["v1"], RUNGS["v3"]), chip=V5E, dtype="float32", sizes=(128,))
    run_ladder(
        request,
        pool,  # pyright: ignore[reportArgumentType]
        Telling(order),
    )
    assert order[0] == "planned 6"
    assert sum(entry.startswith("done") for entry in order) == 6


def test_nothing_is_compiled_where_every_rule_is_broken() -> None:
    pool = AnsweringPool(lambda _: 1.0)
    request = Request(rungs=(RUNGS["v3"], RUNGS["v4"]), chip=V5E, dtype="float32", sizes=(1000,))
    rows = run_ladder(request, pool)  # pyright: ignore[reportArgumentType]
    assert [row.status for row in rows] == ["illegal", "illegal"]
    assert pool.labels == []
