"""Contents of indices, lengths and page tables of recorded operations, which decide how long they take.

Records hold only their shapes. tokamax lists the calls that it times; where a listed call has the arrays of a record,
its contents are those that were timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from systolic.validation.recorded.arguments import array_of


def listed_contents(package: str, arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the known contents of a record's arrays, by argument.

    Args:
      package: the operation's, below tokamax._src.ops; its module `arg_specs` lists the calls.
      arguments: the record's.
    """
    try:
        listed = getattr(importlib.import_module(f"tokamax._src.ops.{package}.arg_specs"), "ARG_SPECS", ())
    except ImportError:
        return {}
    call = next((spec.args for spec in listed if _alike(spec.args, arguments)), {})
    return {name: _content(value) for name, value in call.items() if _has_content(value)}


def _alike(listed: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """True if each listed array has the shape and dtype of the record's, and each number and text its value."""
    for name, value in listed.items():
        recorded = arguments.get(name)
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            array = array_of(recorded)
            if array is None or array.shape != tuple(value.shape) or array.dtype != np.dtype(value.dtype):
                return False
        elif isinstance(value, (int, str)) and value != recorded:
            return False
    return True


def _has_content(value: Any) -> bool:
    """True for integers of known values, and for initializers, which draw theirs from a known range."""
    return isinstance(value, np.ndarray) or (hasattr(value, "minval") and callable(value))


def _content(value: Any) -> np.ndarray:
    return np.asarray(value if isinstance(value, np.ndarray) else value(np.random.default_rng(0)))
