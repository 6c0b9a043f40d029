"""A Google Cloud in a folder: `fake_gcloud` first on PATH, and a machine on which systolic is installed in no time."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_UV = """#!{python}
import json, pathlib, sys
root = pathlib.Path({root!r})
with (root / "installed.jsonl").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if (root / "no_network").exists():
    sys.exit("error: failed to fetch")
if sys.argv[1] == "venv":
    folder = pathlib.Path(sys.argv[-1]) / "bin"
    folder.mkdir(parents=True)
    program = "exec {python}" if (root / "real").exists() else "exec {python} -S {root}/stub.py"
    (folder / "python").write_text("#!/bin/sh\\n" + program + ' "$@"\\n')
    (folder / "python").chmod(0o755)
"""
# Starts at once, where systolic takes a second; called with -m systolic and its arguments.
_STUB = """
import os, pathlib, sys
words = sys.argv[3:]
print("ran", *words)
if "--json" in words:
    pathlib.Path(words[-1]).write_text("{}")
    pathlib.Path(os.environ["SYSTOLIC_STORE"]).write_text("trials")
if "v9" in words:
    sys.stderr.write("'v9' is not known")
    sys.exit(2)
"""


class FakeCloud:
    """The state of the fake, and the requests that it got."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"  # of the machine's user
        for name in ("bin", "home", "remote_bin"):
            (root / name).mkdir(parents=True)
        script = Path(__file__).with_name("fake_gcloud.py").read_text()
        _program(root / "bin" / "gcloud", f"#!{sys.executable}\n{script}")
        _program(root / "remote_bin" / "uv", _UV.format(python=sys.executable, root=str(root)))
        (root / "stub.py").write_text(_STUB)
        (root / "plan.json").write_text("{}")
        (root / "state.json").write_text("{}")

    def install_real(self) -> None:
        """Give later machines this systolic itself, in place of one that only says what it was asked."""
        (self.root / "real").touch()

    def fail(self, **plan: list[str]) -> None:
        """Plan how the next calls of some verbs fail; "" is a call that works."""
        (self.root / "plan.json").write_text(json.dumps(plan))

    def add(self, name: str, **fields: Any) -> None:
        """Add a machine."""
        machines = json.loads((self.root / "state.json").read_text())
        machines[name] = {"state": "READY", "networkEndpoints": [{"ipAddress": "10.0.0.2"}], **fields}
        (self.root / "state.json").write_text(json.dumps(machines))

    @property
    def machines(self) -> list[str]:
        """Names of the machines."""
        return list(json.loads((self.root / "state.json").read_text()))

    @property
    def calls(self) -> list[list[str]]:
        """Arguments of each call of gcloud."""
        return _lines(self.root / "calls.jsonl")

    @property
    def verbs(self) -> list[str]:
        """The verb of each call of gcloud."""
        return [call[3] for call in self.calls]

    @property
    def installed(self) -> list[list[str]]:
        """Arguments of each call of uv on the machine."""
        return _lines(self.root / "installed.jsonl")


def fake_cloud(root: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    """Return the fake, first on PATH."""
    cloud = FakeCloud(root)
    monkeypatch.setenv("PATH", f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return cloud


def names(folder: Path) -> list[str]:
    """Return what lies in a project, but for git's own files."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if ".git" not in path.parts)


@contextmanager
def interrupts() -> Iterator[None]:
    """Make SIGINT an interrupt also where whoever began the tests ignores it, as a shell does of jobs with `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _lines(path: Path) -> list[list[str]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
