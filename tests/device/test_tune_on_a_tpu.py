"""The best trials measured on a real TPU. Skipped, and said so, where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from systolic.chips import CHIPS
from systolic.spec import MatmulSpec
from systolic.store import TrialStore
from systolic.tuning import tune

pytestmark = pytest.mark.device


def test_the_best_are_measured(tmp_path: Path) -> None:
    import jax

    kind = jax.devices()[0].device_kind
    its = next((chip for chip in CHIPS.values() if chip.device_kind == kind), None)
    if its is None:
        pytest.skip(f"needs a TPU; JAX found {kind}")
    spec = MatmulSpec.of(2048, 2048, 2048, "bfloat16")
    found = tune(spec, its, trials=4, measured=2, store=TrialStore(tmp_path / "trials.sqlite"))
    assert found.winner is not None
    assert found.winner.measured_us is not None
    assert found.winner.simulated_us == pytest.approx(found.winner.measured_us, rel=0.2)
