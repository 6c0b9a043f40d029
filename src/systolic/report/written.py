"""Numbers of an explanation as text: memory in MiB, traffic and rates in decimal units."""

from __future__ import annotations

from systolic.schedule import MIB


def us(value: float | None) -> str:
    """Write a time in µs, without its unit."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.2f}" if abs(value) >= 1 else f"{value:,.3f}"


def percent(share: float | None) -> str:
    """Write a share in percent."""
    if share is None:
        return "–"
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{share:.1%}" if 0 < abs(share) < 0.0995 else f"{share:.0%}"


def mib(size_bytes: int) -> str:
    """Write memory in MiB, without its unit."""
    return f"{size_bytes / MIB:,.2f}"


def round_mib(size_bytes: int) -> str:
    """Write a limit in MiB, without its unit: these are whole numbers as a rule."""
    return f"{size_bytes / MIB:,.4g}"


def megabytes(moved_bytes: int | None) -> str:
    """Write traffic in MB, without its unit."""
    return "–" if moved_bytes is None else f"{moved_bytes / 1e6:,.2f}"
