"""Messages about names that are none of the choices."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import systolic
from systolic.spec import SpecError


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"precision": "hihg"}, "precision='hihg' is unknown; did you mean high? choose from default, high, highest"),
        ({"implementation": "palas"}, "did you mean pallas? choose from pallas, xla, interpret, or leave it out"),
        ({"chip": 5}, "chip=5 is not a chip; use a name such as v5e"),
    ],
)
def test_a_similar_name_is_suggested(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        systolic.matmul(jnp.ones((8, 16)), jnp.ones((16, 8)), **keywords)
    assert message in str(caught.value)
