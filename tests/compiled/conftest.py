"""The tests of this folder compile for TPUs."""

import importlib.util
from pathlib import Path

import pytest

_NEEDS_LIBTPU = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler: pip install 'systolic[tpu]'"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(_NEEDS_LIBTPU)
