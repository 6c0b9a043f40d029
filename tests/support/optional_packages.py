"""Marks of tests that need packages which no environment of the tests has."""

from __future__ import annotations

import importlib.util

import pytest

# It needs Python 3.12.
NEEDS_TOKAMAX = pytest.mark.skipif(importlib.util.find_spec("tokamax") is None, reason="tokamax is not installed")
