"""A pool whose workers' folders are the test's own."""

import tempfile

import pytest
from processes import PATIENCE_S

from systolic.compiler import WorkerPool


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def pool(temporary):
    with WorkerPool(max_workers=2, time_limit_s=PATIENCE_S) as pool:
        yield pool
