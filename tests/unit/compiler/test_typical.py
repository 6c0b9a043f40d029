"""Arguments that `systolic.typical` refuses. tests/unit/timing/test_contents.py has its effect on a simulation."""

import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic.support.call_errors import WrongCallError


@pytest.mark.parametrize(
    ("x", "value", "named"),
    [
        (jnp.zeros(4), np.arange(4), r"float32\(4,\)"),
        (jnp.zeros(4, jnp.int32), np.arange(3), r"int32\(4,\) and \(3,\)"),
    ],
)
def test_a_value_that_cannot_stand_for_it(x: jnp.ndarray, value: np.ndarray, named: str) -> None:
    with pytest.raises(ValueError, match=named) as caught:
        systolic.typical(x, value)
    assert isinstance(caught.value, WrongCallError)  # which the command line says in a line, and does not call a bug
