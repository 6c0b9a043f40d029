"""`systolic table profile`: make the tile profiles that come with the package."""

from __future__ import annotations

import os
from pathlib import Path

import click

from systolic.chips import Chip
from systolic.cli.options import Workers, chip_option, count_option, worker_options
from systolic.cli.output import make_folder, note, write_text
from systolic.cli.progress import progress_bar
from systolic.compiler import check_available
from systolic.tuning import COMPILE_LIMIT_S
from systolic.tuning.profiling import profile_tiles


@click.command(name="profile")
@chip_option()
@click.option("--dtype", default="bfloat16", show_default=True, help="The dtype of both operands.")
@count_option("--count", 160, "Number of tiles for each chip.")
@click.option(
    "--again",
    is_flag=True,
    help="After a change: profile the tiles that have a profile in the package.",
)
@worker_options("one tile", time_limit_s=COMPILE_LIMIT_S)
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where to write CHIP_DTYPE.json; the package's files are in systolic/cost/profiles.",
)
@click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")
def profile(
    chips: tuple[Chip, ...], dtype: str, count: int, again: bool, workers: Workers, folder: Path, quiet: bool
) -> int:
    """Compile and simulate single tiles, to learn the cost of their steps, from which the time of any shape follows.

    Exit code 1: no tile of some chip has a profile.

    \b
    Example:
      systolic table profile --chip v6e --dtype int8 --count 160 --out profiles
      systolic table profile --chip v6e --again --out src/systolic/cost/profiles
    """
    for chip in chips:
        chip.peak_ops_per_s(dtype)  # raises an error for a dtype that the chip does not multiply
    check_available()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # this process only describes arguments
    make_folder(folder, folder)
    missing = 0
    for chip in chips:
        with progress_bar(quiet=quiet) as bar, workers.pool() as pool:
            made, failed = profile_tiles(pool, dtype, chip, count=None if again else count, progress=bar)
        for tile, reason in failed.items():
            note(f"{chip.name}: no profile of {tile.tiles}: {reason.splitlines()[0]}", quiet=quiet)
        missing += not made.profiles
        file = folder / made.file_name
        write_text(file, made.as_json())
        note(f"{len(made.profiles)} tiles of {chip.name} into {file}", quiet=quiet)
    return 1 if missing else 0
