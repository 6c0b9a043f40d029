"""The option `--trace`, and the files that it writes: timelines for Perfetto, or for XProf."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from systolic.cli.output import check_target, note, write_bytes, write_text
from systolic.simulator import SimulatedRun, SliceRun
from systolic.timing.device_trace import SUFFIX

_F = TypeVar("_F", bound=Callable[..., Any])


class _TracePath(click.Path):
    """A path whose name says in which form a timeline is written."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        if path.name.endswith(".pb") and not path.name.endswith(SUFFIX):
            self.fail(f"{path} is not a name that XProf reads: call it {path.stem}{SUFFIX}", param, ctx)
        check_target(path)
        return path


def trace_option(command: _F) -> _F:
    """Add `--trace`, which the command takes as `trace_file`."""
    return click.option(
        "--trace",
        "trace_file",
        type=_TracePath(dir_okay=False),
        metavar="FILE",
        help=f"Write the timeline as a Chrome trace, which Perfetto opens, or for XProf if FILE ends in {SUFFIX}. "
        "Several chips: the chip's name is added.",
    )(command)


def write_trace(run: SimulatedRun | SliceRun, path: Path, *, title: str, chip: str | None, quiet: bool) -> None:
    """Write a run's timeline.

    Args:
      chip: to be added to the file's name, of several; None: one chip.
    """
    from systolic.report import chrome_trace, spans_left_out, xspace

    is_xspace = path.name.endswith(SUFFIX)
    if chip is not None:
        suffix = SUFFIX if is_xspace else path.suffix
        path = path.with_name(f"{path.name.removesuffix(suffix)}_{chip}{suffix}")
    if is_xspace:
        write_bytes(path, xspace(run, title=title))
    else:
        write_text(path, json.dumps(chrome_trace(run, title=title), allow_nan=False))
    left_out = spans_left_out(run)
    note(f"trace {path}" + (f" ({left_out:,} spans in the middle left out)" if left_out else ""), quiet=quiet)
