"""`systolic doctor`: what works here, and what does not and why."""

from __future__ import annotations

import os

import cattrs
import click

from systolic.cli.options import output_options
from systolic.cli.output import check_target, give
from systolic.cli.progress import progress_bar
from systolic.cli.tables import console, show_table
from systolic.installation import Installation, Part, installation
from systolic.report.columns import Column, textual

_STYLES = {"works": "green", "absent": "dim", "not tried": "dim", "broken": "bold red"}
_COLUMNS: tuple[Column[Part], ...] = (
    textual("", lambda part: part.state, style=lambda part: _STYLES[part.state]),
    textual("part", lambda part: part.name),
    textual("what was found", lambda part: f"{part.about} ({part.fix})" if part.fix else part.about),
)


@click.command()
@click.option(
    "--compile/--no-compile",
    "compiles",
    default=True,
    show_default=True,
    help="Compile and run a small product, which takes some seconds.",
)
@output_options
def doctor(compiles: bool, json_file: str | None, quiet: bool) -> int:
    """Show what works on this machine: versions, compiler, devices, cache, trial store, extras.

    It uses no TPU. Attach its output to a bug report. Exit code 1: something that should work does not.

    \b
    Examples:
      systolic doctor
      systolic doctor --no-compile --json -
    """
    check_target(json_file)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # TPUs are counted, and not used
    with progress_bar(quiet=quiet) as bar:
        if compiles:
            bar.doing("compiling a small product")
        report = installation(compiles=compiles)
    summary = {"ok": report.ok, "installation": cattrs.unstructure(report)}
    give(json_file, "doctor", map(cattrs.unstructure, report.parts), summary, lambda: _show(report))
    return 0 if report.ok else 1


def _show(installation: Installation) -> None:
    out = console()
    installed = (f"{name} {text}" for name, text in installation.versions.items() if text is not None)
    out.print(" · ".join(installed), markup=False)
    out.print(f"{installation.platform} · {installation.executable}\n", markup=False)
    show_table(out, _COLUMNS, installation.parts)
