"""The order in which a search proposes configurations, and the winner it names."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

import systolic
import systolic.ops.kept_trials
from systolic.accuracy.time_error import TimeError
from systolic.chips import Chip, chip
from systolic.cost import ranked_configs
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import MatmulSpec
from systolic.store import Trial
from systolic.tuning import Ranking, TuningResult

PROBLEM = MatmulSpec.of(1024, 1024, 1024, "bfloat16")


V6E = chip("v6e")


@pytest.mark.parametrize("seed", range(5))
def test_a_ranking_proposes_each_once_and_the_best_first(seed: int) -> None:
    choices = ranked_configs(PROBLEM, V6E)[0][:300]
    ranking = Ranking(choices)
    assert np.allclose(ranking.predicted_us(), [one.modelled.time_us for one in choices])
    first = ranking.next()
    assert first == choices[0]
    choose = random.Random(seed)
    proposed = []
    while (choice := ranking.next(proposed[-1:])) is not None:
        proposed.append(choice.config)
        if choose.random() < 0.5:
            assert choice.modelled_us is not None
            ranking.learn(choice.config, choice.modelled_us * choose.uniform(0.9, 1.1))
        else:
            ranking.started(choice.config)
    assert len(proposed) == len(set(proposed)) == 300
    predicted = ranking.predicted_us() / [one.modelled.time_us for one in choices]
    assert 0.9 <= predicted.min() <= predicted.max() <= 1.1


@pytest.mark.parametrize(
    ("error_percent", "verdict", "level"), [(5.0, "faster", 1), (15.0, "level", 1), (None, "not known", None)]
)
def test_a_winner_inside_the_error_has_not_won(
    monkeypatch: pytest.MonkeyPatch, error_percent: float | None, verdict: str, level: int | None
) -> None:
    """XLA takes 12 % longer; of one kernel, times 2 % apart are told from each other, and those 1 % apart are not."""

    def errors(trial: Trial, computed: MatmulSpec, known: Chip) -> TimeError:
        reason = "" if error_percent is not None else "unlike"
        share = None if error_percent is None else 1.5
        return TimeError(kind="k", percent=error_percent, ratio_percent=share, reason=reason)

    monkeypatch.setattr(systolic.ops.kept_trials, "trial_error", errors)
    tiles = [Tiles(tile_m=128, tile_k=128, tile_n=tile_n) for tile_n in (128, 256, 512)]
    configs = [KernelConfig(tiles=each, subtile_m=128, subtile_n=each.tile_n) for each in tiles]
    times = (100.0, 101.0, 102.0)
    trials = tuple(Trial(config=each, status="ok", simulated_us=us) for each, us in zip(configs, times, strict=True))
    xla = Trial(config=None, status="ok", simulated_us=112.0)
    result = TuningResult(
        spec=PROBLEM, computed=PROBLEM, chip="v6e", trials=trials, xla=xla, xla_us=112.0,
        considered=3, compiled=3, seconds=1.0, end="all",
    )  # fmt: skip
    assert result.verdict == verdict
    assert result.level_trials == level


@dataclass(frozen=True)
class Variant:
    """A choice of a function's, with or without a modelled time."""

    config: int
    modelled_us: float | None


def test_without_a_model_times_of_others_rank() -> None:
    """Choices stand in a row, and the nearer two are the nearer are their times."""
    ranking = Ranking([Variant(number, None) for number in range(5)], lambda number: (4.0 * number,))
    assert ranking.predicted_us() == pytest.approx(1.0)
    ranking.learn(4, 100.0)
    assert ranking.predicted_us() == pytest.approx(100.0)
    ranking.learn(0, 10.0)
    choice = ranking.next()
    assert choice is not None
    assert choice.config == 1  # next to the fastest


def test_a_choice_without_a_model_stands_amid_those_with_one() -> None:
    ranking = Ranking([Variant(0, 10.0), Variant(1, None), Variant(2, 30.0)], lambda number: (9.0 * number,))
    assert ranking.predicted_us() == pytest.approx([10, 20, 30])
    ranking.learn(1, 5.0)
    assert ranking.predicted_us() == pytest.approx([10, 5, 30])
