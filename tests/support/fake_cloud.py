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
    (folder / "python").touch()
    real = "exec {python} -m systolic" if (root / "real").exists() else "exec {python} -S {root}/stub.py"
    (folder / "systolic").write_text("#!/bin/sh\\n" + real + " \\"$@\\"\\n")
    (folder / "systolic").chmod(0o755)
"""
# Is there at once, where systolic takes a second.
_STUB = """
import sys
print("ran", *sys.argv[1:])
if "v9" in sys.argv:
    sys.stderr.write("'v9' is not known")
    sys.exit(2)
"""


class FakeCloud:
    """What the fake knows, and was asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("bin", "home", "remote_bin"):
            (root / name).mkdir(parents=True)
        script = Path(__file__).with_name("fake_gcloud.py").read_text()
        _program(root / "bin" / "gcloud", f"#!{sys.executable}\n{script}")
        _program(root / "remote_bin" / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        _program(root / "remote_bin" / "uv", _UV.format(python=sys.executable, root=str(root)))
        (root / "stub.py").write_text(_STUB)
        (root / "plan.json").write_text("{}")
        (root / "state.json").write_text('{"nodes": {}, "queue": {}}')

    def install_real(self) -> None:
        """From now on machines have this systolic itself, in place of one that only says what it was asked."""
        (self.root / "real").touch()

    @property
    def home(self) -> Path:
        """The home folder of the machine's user."""
        return self.root / "home"

    def fail(self, **plan: list[str]) -> None:
        """How the next calls of some verbs are to fail; "" is a call that works."""
        (self.root / "plan.json").write_text(json.dumps(plan))

    def add(self, name: str, **fields: Any) -> None:
        """A machine that is there already."""
        node = {
            "name": f"projects/mine/locations/us-west4-a/nodes/{name}",
            "acceleratorType": "v5litepod-1",
            "runtimeVersion": "v2-alpha-tpuv5-lite",
            "state": "READY",
            "createTime": "2026-05-01T10:11:12Z",
            "networkEndpoints": [{"ipAddress": "10.0.0.2"}],
            **fields,
        }
        self._keep("nodes", name, node)

    def add_request(self, name: str, state: str) -> None:
        """A queued request that is there already."""
        node = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
        request = {
            "name": f"projects/mine/locations/us-west4-a/queuedResources/{name}",
            "state": {"state": state},
            "spot": {},
            "tpu": {"nodeSpec": [{"nodeId": name, "node": node}]},
        }
        self._keep("queue", name, request)

    def _keep(self, kind: str, name: str, record: dict[str, Any]) -> None:
        state = json.loads((self.root / "state.json").read_text())
        state[kind][name] = record
        (self.root / "state.json").write_text(json.dumps(state))

    @property
    def machines(self) -> list[str]:
        """Names of those that are there."""
        return list(json.loads((self.root / "state.json").read_text())["nodes"])

    @property
    def requests(self) -> list[str]:
        """Names of those that are queued."""
        return list(json.loads((self.root / "state.json").read_text())["queue"])

    @property
    def calls(self) -> list[list[str]]:
        """Arguments of each call of gcloud."""
        return _lines(self.root / "calls.jsonl")

    @property
    def verbs(self) -> list[str]:
        """The arguments of each call of gcloud."""
        return [call[3] for call in self.calls]

    @property
    def installed(self) -> list[list[str]]:
        """Arguments of each call of uv on the machine."""
        return _lines(self.root / "installed.jsonl")


def fake_cloud(root: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    """The fake, first on PATH."""
    cloud = FakeCloud(root)
    monkeypatch.setenv("PATH", f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return cloud


@contextmanager
def interrupts() -> Iterator[None]:
    """Ctrl-C is one, also where whoever began the tests ignores it, as a script's shell does of jobs behind `&`."""
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
