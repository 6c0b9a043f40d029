"""TPU interpret mode runs on the CPU: say so before any backend starts."""

import os
import sys
from collections.abc import Iterator

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
if "jax" in sys.modules:  # the variable is read when jax is imported, which another test may have done
    sys.modules["jax"].config.update("jax_platforms", "cpu")


@pytest.fixture(autouse=True)
def _clean_interpreter() -> Iterator[None]:
    # The simulated memory is global: after an exception it would be met by the next test.
    from jax.experimental.pallas import tpu as pltpu

    yield
    pltpu.reset_tpu_interpret_mode_state()
