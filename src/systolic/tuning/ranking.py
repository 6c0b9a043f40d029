"""Choose which configuration to try next: the model's time, corrected by the results of similar ones.

The model is off by the same few percent for configurations that are alike, so each trial informs about its neighbors.
The correction is the mean of the logarithms of simulated over modelled times, weighted by how near each trial is, and
shrinks to none where no trial is near.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from jaxtyping import Float

from systolic.schedule import KernelConfig

ConfigT = TypeVar("ConfigT", bound=Hashable)
_ConfigOut = TypeVar("_ConfigOut", covariant=True)


class Choice(Protocol[_ConfigOut]):
    """A configuration that can be tried, and its expected time."""

    @property
    def config(self) -> _ConfigOut: ...

    @property
    def modelled_us(self) -> float | None:
        """The time by the model, right only in comparison with others'; None: no model knows it."""
        ...


_REACH = 1.0  # in octaves of a tile's side: at this distance a trial counts e^-1/2 of one at none
_PRIOR = 0.3  # weight of the model without correction, in trials
_STAGES, _PIPELINE, _ORDER = 1.0, 1.0, 0.5  # distances, in octaves, between kernels that differ in these


def features(config: KernelConfig) -> tuple[float, ...]:
    """Return a configuration's coordinates: octaves of its sides, then other properties that its code depends on."""
    tiles = config.tiles
    sides = (tiles.tile_m, tiles.tile_k, tiles.tile_n, config.subtile_m, config.subtile_n, config.fill_chunks)
    return (
        *map(float, np.log2(sides)),
        _STAGES * (config.num_stages - 2),
        _PIPELINE * (config.pipeline == "manual"),
        _ORDER * (config.grid_order == "m"),
    )


class Ranking(Generic[ConfigT]):
    """Choices in the order in which to try them; `features` are a choice's coordinates, in octaves along each axis."""

    def __init__(
        self, choices: Sequence[Choice[ConfigT]], features: Callable[[ConfigT], Sequence[float]] = features
    ) -> None:
        self._choices = list(choices)
        self._number = {choice.config: number for number, choice in enumerate(self._choices)}
        self._features = np.array([features(choice.config) for choice in self._choices])
        modelled = [choice.modelled_us for choice in self._choices]
        modelled_times_us = [time_us for time_us in modelled if time_us is not None]
        # Without a model all are expected to take the same time, whatever that is, until one of them was tried.
        usual_us = float(np.median(modelled_times_us)) if modelled_times_us else 1.0
        self._modelled = np.array([usual_us if time_us is None else time_us for time_us in modelled])
        self._unmodelled = np.array([time_us is None for time_us in modelled], bool)
        self._open = np.ones(len(self._choices), bool)
        self._weights: Float[np.ndarray, " n"] = np.full(len(self._choices), _PRIOR)
        self._errors: Float[np.ndarray, " n"] = np.zeros(len(self._choices))

    def predicted_us(self) -> Float[np.ndarray, " n"]:
        return self._modelled * np.exp(self._errors / self._weights)

    def started(self, config: ConfigT) -> None:
        """Take a configuration out: a trial of it is under way, or known to be of no use."""
        if config in self._number:
            self._open[self._number[config]] = False

    def learn(self, config: ConfigT, time_us: float) -> None:
        """Correct expected times by a trial that has ended."""
        self.started(config)
        number = self._number.get(config)
        if number is None:
            return
        if self._unmodelled[number]:
            self._modelled[self._unmodelled] = time_us
            self._unmodelled[:] = False
        distances = np.linalg.norm(self._features - self._features[number], axis=1)
        weights = np.exp(-((distances / _REACH) ** 2) / 2)
        self._weights += weights
        self._errors += weights * np.log(time_us / self._modelled[number])

    def next(self, under_way: Sequence[ConfigT] = ()) -> Choice[ConfigT] | None:
        """Return the most promising that was not started, and unlike those under way."""
        if not self._open.any():
            return None
        predicted = np.where(self._open, self.predicted_us(), np.inf)
        taken = [self._number[config] for config in under_way if config in self._number]
        if taken:
            distances = np.min(
                np.linalg.norm(self._features[:, None] - self._features[taken][None], axis=2), axis=1, initial=np.inf
            )
            # Trials that run at the same time have to teach different things.
            predicted = predicted * (1 + 0.01 * np.exp(-((distances / _REACH) ** 2) / 2))
        return self._choices[int(np.argmin(predicted))]
