"""The systolic that runs here as a wheel, so that a machine installs the same without asking a package index for it.

A wheel of nothing but Python is a zip of the installed files and a few lines about them, as
https://packaging.python.org/specifications/binary-distribution-format says.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import systolic
from systolic.cloud.errors import ProjectError

_ABOUT = "Wheel-Version: 1.0\nGenerator: systolic\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_METADATA = ("METADATA", "entry_points.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel that is not written yet: its file's name, which installers read, and its bytes."""

    name: str
    content: bytes


def running_wheel() -> Wheel:
    """Packs the package that runs, with the metadata that it was installed with.

    Raises:
      ProjectError: it was never installed, or lies in no folder.
    """
    package = Path(systolic.__file__).parent
    try:
        installed = distribution("systolic")
    except PackageNotFoundError as error:
        raise ProjectError(
            f"systolic runs from {package} and was never installed, so a machine cannot install it either: install it "
            "with pip, or run it from a checkout by git"
        ) from error
    modules = [path for path in sorted(package.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    if not modules:
        raise ProjectError(f"a machine cannot install systolic: {package} is no folder of Python files")
    files = {f"systolic/{path.relative_to(package).as_posix()}": path.read_bytes() for path in modules}
    about = f"systolic-{installed.version}.dist-info"
    files |= {f"{about}/{name}": (installed.read_text(name) or "").encode() for name in _METADATA}
    files[f"{about}/WHEEL"] = _ABOUT.encode()
    files[f"{about}/RECORD"] = _record(files, f"{about}/RECORD")
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return Wheel(name=f"systolic-{installed.version}-py3-none-any.whl", content=target.getvalue())


def _record(files: Mapping[str, bytes], itself: str) -> bytes:
    """The wheel's list of its files, with a digest of each but its own."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(content)))
    rows.writerow((itself, "", ""))
    return text.getvalue().encode()
