"""The search with a compiler that is a formula: what it tries, what it keeps, when it ends, what it learns."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import systolic
import systolic.ops.kept_trials
from systolic.chips import Chip, UnsupportedDtypeError, chip
from systolic.compiler import CompilerCrash, CompilerRefusal, CompilerTimeout
from systolic.cost import estimated_config, least_time_us, ranked_configs
from systolic.ops.matmul.programs import programs_of
from systolic.schedule import KernelConfig
from systolic.simulator import SimulatedRun
from systolic.spec import Epilogue, FusedOperand, MatmulSpec, Prologue, SpecError
from systolic.store import Trial, TrialStore
from systolic.timing import Measurement
from systolic.timing.experiment import Experiment
from systolic.timing.runner import Stopped
from systolic.tuning import SavedTuningError, StalledError, TuneCallError, TuningResult, Watcher, tune

PROBLEM = MatmulSpec.of(1024, 1024, 1024, "bfloat16")
V6E = chip("v6e")


def config_of(fn: Any) -> KernelConfig | None:
    """The configuration that a kernel's program is bound to; XLA's has none."""
    return next((bound for bound in fn.args if isinstance(bound, KernelConfig)), None)


class Machine:
    """A compiler whose times are the model's, but for a factor for each tile: `strange` is what the model misses.

    XLA's program takes 7 µs, and `more_vmem_us` with 64 MiB of scoped VMEM.
    """

    def __init__(self, factor: Callable[[KernelConfig], float] = lambda _: 1.0, *, more_vmem_us: float = 9.0) -> None:
        self.factor, self.more_vmem_us = factor, more_vmem_us
        self.asked: list[KernelConfig | None] = []
        self.raises: dict[int, Exception] = {}

    def __call__(self, experiment: Experiment) -> Future[Measurement]:
        fn: Any = experiment.fn
        config = config_of(fn)
        future: Future[Measurement] = Future()
        if experiment.chip.given_flags:  # XLA's second form ends as the first does
            if (error := self.raises.get(len(self.asked))) is not None:
                future.set_exception(error)
            else:
                future.set_result(self.measurement(None, experiment.chip))
            return future
        self.asked.append(config)
        error = self.raises.get(len(self.asked))
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(self.measurement(config, experiment.chip))
        return future

    def time_us(self, config: KernelConfig, its: Chip = V6E) -> float:
        return estimated_config(PROBLEM, config, its).modelled.time_us * self.factor(config)

    def measurement(self, config: KernelConfig | None, its: Chip) -> Measurement:
        run = SimpleNamespace(
            prefetch_us=1.0 if config is None else 0.0,
            stalls={"copy": 0.2, "matrix": 0.5},
            vmem_bytes=1 << 20,
            hbm_read_bytes=100,
            hbm_written_bytes=10,
            bundles=1000,
            flags=dict(its.compiler_flags),
        )
        xla_us = self.more_vmem_us if its.given_flags else 7.0
        time_us = xla_us if config is None else self.time_us(config, its)
        return Measurement(
            chip=its.name, provenance="simulated", time_us=time_us, run=cast(SimulatedRun, run), compile_s=1.0
        )


def searched(tmp_path: Path, machine: Machine, **options: Any) -> TuningResult:
    store = TrialStore(tmp_path / "trials.sqlite")
    return tune(PROBLEM, "v6e", store=store, submit=machine, **options)


def test_an_argument_that_tune_does_not_take_is_no_bug(tmp_path: Path) -> None:
    with pytest.raises(TuneCallError, match=r"'max_trials'; its arguments are .*\btrials\b"):
        searched(tmp_path, Machine(), max_trials=5)
    with pytest.raises(TypeError, match="too many positional arguments"):
        cast(Any, systolic.tune)(PROBLEM, "v6e", "v5e")


def test_a_result_is_written_and_read_again(tmp_path: Path) -> None:
    found = searched(tmp_path, Machine(), trials=5)
    again = TuningResult.from_json(found.to_json())
    assert again == found
    assert again.ratio_to_xla == found.ratio_to_xla is not None
    with pytest.raises(SavedTuningError, match="format"):
        TuningResult.from_json(found.to_json().replace('"format": 1', '"format": 2'))
    with pytest.raises(SavedTuningError, match="not JSON"):
        TuningResult.from_json("{")


def test_the_faster_form_of_xla_is_the_opponent(tmp_path: Path) -> None:
    plain = searched(tmp_path, Machine(), trials=1).xla
    assert plain is not None
    assert (plain.simulated_us, plain.flags) == (7.0, {})
    machine = Machine(more_vmem_us=5.0)
    flagged = searched(tmp_path / "other", machine, trials=1).xla
    assert flagged is not None
    assert (flagged.simulated_us, flagged.flags) == (5.0, {"xla_tpu_scoped_vmem_limit_kib": "65536"})
    assert searched(tmp_path / "other", machine, trials=1).xla == flagged  # out of the store
    defaults = searched(tmp_path / "other", machine, trials=1, xla_default_flags=True).xla
    assert defaults is not None
    assert (defaults.simulated_us, defaults.flags) == (7.0, {})
    assert searched(tmp_path / "other", machine, trials=1).xla == flagged  # which has kept the faster


def test_so_many_trials_and_xla(tmp_path: Path) -> None:
    machine = Machine()
    told: list[tuple[Trial, Trial | None]] = []
    planned: list[int] = []
    watcher = Watcher(planned=planned.append, tried=lambda trial, best: told.append((trial, best)))
    result = searched(tmp_path, machine, trials=5, watcher=watcher)
    assert (result.end, result.compiled, len(result.trials)) == ("trials", 5, 5)
    assert machine.asked.count(None) == 1
    assert len(set(machine.asked)) == 6
    assert (planned, len(told)) == ([6], 6)
    assert result.winner == result.trials[0]
    assert [one.time_us for one in result.trials] == sorted(one.time_us for one in result.trials if one.time_us)
    # XLA's copy ahead is charged as far as HBM has no time for it.
    least_us = PROBLEM.least_hbm_bytes / V6E.machine.hbm_bytes_per_s * 1e6
    assert result.xla_us == pytest.approx(max(7.0, min(8.0, least_us)))
    assert result.winner is not None
    assert result.winner.time_us is not None
    assert result.xla_us is not None
    assert result.ratio_to_xla == pytest.approx(result.xla_us / result.winner.time_us)


def test_a_search_goes_on_where_one_stopped(tmp_path: Path) -> None:
    first, second = Machine(), Machine()
    searched(tmp_path, first, trials=4)
    result = searched(tmp_path, second, trials=7)
    assert not set(first.asked) & set(second.asked)
    assert (len(result.trials), result.compiled) == (7, 3)
    whole = searched(tmp_path / "other", Machine(), trials=7)
    assert result.winner == whole.winner
    third = Machine()
    assert searched(tmp_path, third, trials=7).winner == result.winner
    assert third.asked == []


def test_what_the_model_misses_is_learned(tmp_path: Path) -> None:
    """The planner's favourite kind is a third slower than modelled: the search goes elsewhere, and finds the best."""
    favourite = ranked_configs(PROBLEM, V6E)[0][0].config
    machine = Machine(lambda one: 1.33 if one.tiles.tile_k == favourite.tiles.tile_k else 1.0)
    best_us = min(machine.time_us(choice.config) for choice in ranked_configs(PROBLEM, V6E)[0])
    result = searched(tmp_path, machine, trials=12)
    assert result.winner is not None
    assert result.winner.time_us is not None
    assert result.winner.time_us <= 1.02 * best_us < machine.time_us(favourite)


def test_refusals_and_crashes_are_kept_and_not_tried_again(tmp_path: Path) -> None:
    machine = Machine()
    machine.raises = {
        2: CompilerRefusal("no room in VMEM", kind="vmem"),
        3: CompilerCrash(label="x", exit_code=None, signal_name="SIGSEGV", stderr_tail=""),
    }
    result = searched(tmp_path, machine, trials=4)
    assert {one.status: one.reason for one in result.trials} == {
        "ok": "",
        "refused": "no room in VMEM",
        "crashed": next(one.reason for one in result.trials if "SIGSEGV" in one.reason),
    }
    again = Machine()
    searched(tmp_path, again, trials=5)
    assert len(again.asked) == 1
    assert again.asked[0] not in machine.asked


def test_no_trial_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    result = searched(tmp_path, Machine(), time_budget_s=1e-9)
    assert (result.end, result.trials, result.winner, result.ratio_to_xla) == ("time", (), None, None)
    with pytest.raises(LookupError, match="no trial"):
        _ = result.config


def test_nothing_is_tried_that_cannot_be_faster(tmp_path: Path) -> None:
    """A machine that is as fast as can be: once the best is known, no other has a lower bound below it."""
    choices = ranked_configs(PROBLEM, V6E)[0]
    bounds = {one.config: least_time_us(PROBLEM, one.config, V6E) for one in choices}
    assert all(bounds[one.config] <= one.modelled.time_us for one in choices)
    least = min(bounds.values())
    machine = Machine(lambda one: least / estimated_config(PROBLEM, one, V6E).modelled.time_us)
    result = searched(tmp_path, machine, exhaustive=True)
    assert result.end == "bound"
    assert result.compiled < 5 < result.considered


def test_what_cannot_be_tuned_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDtypeError, match="v4 has no"):
        tune(MatmulSpec.of(512, 512, 512, "int8"), "v4", submit=Machine())
    made = replace(PROBLEM, lhs_prologue=Prologue(dtype="bfloat16"))
    with pytest.raises(SpecError, match="operand's function"):
        programs_of(made, V6E)
    unknown = replace(PROBLEM, epilogue=Epilogue(activation="my_activation", op_count=3))
    with pytest.raises(SpecError, match="relu"):
        programs_of(unknown, V6E)
    matrix, column = (FusedOperand(rows=True, columns=columns, dtype="float32") for columns in (True, False))
    for of_a_gradient in (Epilogue(primal=matrix), Epilogue(activation="relu", kept_sum="float32")):
        with pytest.raises(SpecError, match="gradient"):
            programs_of(replace(PROBLEM, epilogue=of_a_gradient), V6E)
    with pytest.raises(SpecError, match="cannot be built from its spec: batch_lhs would be 1 and not 2"):
        programs_of(replace(PROBLEM, batch_lhs=2), V6E)
    (operands,) = programs_of(replace(PROBLEM, epilogue=Epilogue(bias=column)), V6E).arguments
    assert operands.bias.shape == (1024, 1)


def test_what_may_be_this_machines_fault_is_tried_again_next_time(tmp_path: Path) -> None:
    machine = Machine()
    machine.raises = {
        1: CompilerTimeout(label="XLA", limit_s=120.0),
        2: RuntimeError("KilledWorker"),
        3: CompilerTimeout(label="x", limit_s=120.0),
    }
    result = searched(tmp_path, machine, trials=4)
    assert sorted(one.status for one in result.trials) == ["failed", "ok", "ok", "timed out"]
    assert "KilledWorker" in "".join(one.reason for one in result.trials)
    assert result.xla is not None
    assert result.xla.status == "timed out"
    again = Machine()
    result = searched(tmp_path, again, trials=4)
    assert set(again.asked) == set(machine.asked[:3])
    assert result.ratio_to_xla is not None


def test_a_search_that_nobody_works_for_stops_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("systolic.tuning.search._PATIENCE", 1e-4)
    waiting: list[Future[Measurement]] = []

    def lost(*_: Any) -> Future[Measurement]:
        waiting.append(Future())
        return waiting[-1]

    with pytest.raises(StalledError, match="are there workers left"):
        tune(PROBLEM, "v6e", store=TrialStore(tmp_path / "t.sqlite"), submit=lost)
    assert len(waiting) == 2


def test_the_best_by_simulation_are_measured_once_and_a_failure_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def measured(fn: Any, arguments: Any, its: Chip) -> Measurement:
        asked.append(config_of(fn))
        if len(asked) == 1:
            raise RuntimeError("RESOURCE_EXHAUSTED")
        return Measurement(chip=its.name, provenance="measured", time_us=100.0 + len(asked))

    monkeypatch.setattr("systolic.tuning.product.device_of", lambda its: None)
    monkeypatch.setattr("systolic.tuning.product.measure", measured)
    result = searched(tmp_path, Machine(), trials=4, measured=2)
    assert len(asked) == 3
    assert asked[2] is None
    assert result.winner is not None
    assert (result.winner.config, result.winner.measured_us) == (asked[1], 102.0)
    assert result.ratio_to_xla == pytest.approx(103 / 102)
    assert "not measured: RuntimeError: RESOURCE_EXHAUSTED" in next(
        one.reason for one in result.trials if one.config == asked[0]
    )
    again = searched(tmp_path, Machine(), trials=4, measured=3)
    assert len(asked) == 5, "the one that failed and a third"
    assert again.winner is not None
    assert again.winner.measured_us == 102.0


def test_ctrl_c_ends_a_search_with_what_it_has_found(tmp_path: Path) -> None:
    class Interrupted(Machine):
        def __call__(self, experiment: Experiment) -> Future[Measurement]:
            if len(self.asked) == 5:
                raise KeyboardInterrupt
            return super().__call__(experiment)

    first, second = Interrupted(), Machine()
    with pytest.raises(Stopped) as stop:
        searched(tmp_path, first, trials=9, workers=1)
    result = stop.value.finished
    assert (result.end, result.compiled, len(result.trials)) == ("stopped", 4, 4)
    assert result.winner == result.trials[0]
    assert searched(tmp_path, second, trials=9, workers=1).compiled == 5
    assert not set(first.asked) & set(second.asked)
