"""Versions of what a result depends on."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("systolic", "jax", "jaxlib", "libtpu")


def versions() -> dict[str, str | None]:
    """Return the versions of packages that a result depends on; None for a package that is not installed."""
    result: dict[str, str | None] = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            result[package] = version(package)
        except PackageNotFoundError:
            result[package] = None
    return result
