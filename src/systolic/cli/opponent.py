"""The opponent on the command line: XLA, with its default flags or with 64 MiB of scoped VMEM, whichever is faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click

from systolic.report.columns import Column, Row, textual

xla_default_flags_option = click.option(
    "--xla-default-flags",
    is_flag=True,
    help="Compare with XLA with default flags only, not with the faster of these and 64 MiB of scoped VMEM.",
)


def opponent_column(xla_flags: Callable[[Row], Mapping[str, str]]) -> Column[Row]:
    """Return a column that says which flags XLA was faster with, from the flags that were added to its defaults."""
    return textual("XLA with", lambda row: "64 MiB" if xla_flags(row) else "defaults", droppable=True)
