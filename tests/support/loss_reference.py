"""Softmax losses and their gradients in float64, with bounds of what float32 kernels may be off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

UNIT = 2.0**-24  # of float32: half of the distance from one to the next number
_FUNCTION = 8  # units of an exponential, a logarithm or a hyperbolic tangent, and of the operations next to it


def wide(array: Any) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Logits `x @ w` in float64, and the error of each that sums over k in float32 may have."""

    x: np.ndarray
    w: np.ndarray
    labels: np.ndarray  # negative: none
    logits: np.ndarray
    logit_error: np.ndarray
    slope: np.ndarray  # of a capped logit

    @classmethod
    def of(cls, x: Any, w: Any, labels: Any, soft_cap: float | None = None) -> Reference:
        x, w, labels = wide(x), wide(w), np.asarray(labels)
        logits = x @ w
        error = (x.shape[1] + 1) * UNIT * (np.abs(x) @ np.abs(w))
        slope = np.ones_like(logits)
        if soft_cap is not None:
            logits = soft_cap * np.tanh(logits / soft_cap)
            slope = 1 - (logits / soft_cap) ** 2
            error = error + _FUNCTION * UNIT * soft_cap
        return cls(x=x, w=w, labels=labels, logits=logits, logit_error=error, slope=slope)

    @classmethod
    def of_logits(cls, x: Any, w: Any, labels: Any, logits: Any, soft_cap: float | None) -> Reference:
        """Return the reference of logits in memory, before their cap, which have no error."""
        reference = cls.of(wide(logits), np.eye(logits.shape[1]), labels, soft_cap)
        error = np.full(logits.shape, 0.0 if soft_cap is None else _FUNCTION * UNIT * soft_cap)
        return replace(reference, x=wide(x), w=wide(w), logit_error=error)

    def kept_error(self, dtype: str) -> np.ndarray:
        """Return the error of logits that are rounded to this dtype."""
        unit = 0.0 if dtype == "float32" else 2.0**-8
        return (1 + unit) * self.logit_error + unit * np.abs(self.logits)

    @property
    def lse(self) -> np.ndarray:
        largest = self.logits.max(1)
        return largest + np.log(np.exp(self.logits - largest[:, None]).sum(1))

    @property
    def lse_error(self) -> np.ndarray:
        """The error of the worst logit, of n additions, and of exponentials of rounded differences."""
        size = self.logits.shape[1] + _FUNCTION + 2 * np.ptp(self.logits, axis=1)
        return self.logit_error.max(1) + UNIT * (size + 2 * np.abs(self.lse))

    @property
    def picked(self) -> np.ndarray:
        return np.where(self.labels < 0, 0, self.at_label(self.logits))

    def at_label(self, array: np.ndarray) -> np.ndarray:
        return np.take_along_axis(array, np.maximum(self.labels, 0)[:, None], 1)[:, 0]

    def gradients(self, dlse: Any, dpicked: Any, dtotal: Any, unit: float) -> tuple[Any, Any, Any, Any]:
        """Return dx, dw and their bounds, for operands whose dtype rounds by `unit`."""
        dlse, dpicked, dtotal = (wide(array)[:, None] for array in (dlse, dpicked, dtotal))
        probability = np.exp(self.logits - self.lse[:, None])
        chosen = np.arange(self.logits.shape[1]) == self.labels[:, None]
        errors = dlse * probability + np.where(chosen, dpicked, 0) + dtotal
        exponent = (
            self.logit_error + self.lse_error[:, None] + UNIT * (np.abs(self.logits - self.lse[:, None]) + _FUNCTION)
        )
        off = np.abs(dlse) * probability * np.expm1(exponent)
        off = off + 4 * UNIT * (np.abs(dlse) * probability + np.abs(dpicked) + np.abs(dtotal))
        # A capped logit's slope is 1 - t², whose t is as far off as the logit, over the cap that is at least 1 here.
        off = off * self.slope + np.abs(errors) * (2 * self.logit_error + _FUNCTION * UNIT) * (self.slope < 1)
        errors = errors * self.slope
        off = (1 + unit) * off + unit * np.abs(errors)
        m, n = errors.shape
        dx, dw = errors @ self.w.T, self.x.T @ errors
        sizes = np.abs(errors) + off
        dx_error = off @ np.abs(self.w).T + (n + 1) * UNIT * (sizes @ np.abs(self.w).T)
        dw_error = np.abs(self.x).T @ off + (m + 1) * UNIT * (np.abs(self.x).T @ sizes)
        return dx, (1 + unit) * dx_error + unit * np.abs(dx), dw, (1 + unit) * dw_error + unit * np.abs(dw)


def assert_near(values: Any, wanted: np.ndarray, error: np.ndarray) -> None:
    beyond = np.abs(wide(values) - wanted) - error
    assert values.shape == wanted.shape
    assert (beyond <= 0).all(), f"{beyond.max()} beyond a tolerance of at most {error.max()}"
