"""Options that several of `systolic tpu`'s commands take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from systolic.chips import CHIPS
from systolic.cloud import commands

_F = TypeVar("_F", bound=Callable[..., Any])


def _all(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    def decorate(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


place_options = _all(
    click.option("--zone", default="", metavar="ZONE", help="Such as us-west4-a, in place of gcloud's own setting."),
    click.option("--project", default="", metavar="ID", help="Of Google Cloud, in place of gcloud's own setting."),
)
order_options = _all(
    click.option(
        "--chip",
        "chip_name",
        default="",
        metavar="CHIP",
        help=f"One of {', '.join(CHIPS)}: takes the smallest machine with it.  [default: v5e]",
    ),
    click.option("--accelerator-type", default="", metavar="TYPE", help="Such as v6e-4, in place of the smallest."),
    click.option(
        "--runtime-version", default="", metavar="VERSION", help="Of the machine's software, in place of the usual one."
    ),
    click.option("--spot", is_flag=True, help="Cheaper, and taken back whenever Google needs it."),
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Print the commands for a shell, and run nothing.")


def print_commands(lines: Sequence[commands.Arguments]) -> None:
    """Command lines on standard output, each to be pasted into a shell."""
    for line in lines:
        click.echo(commands.quoted(line))
