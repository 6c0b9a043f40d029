"""Options that several commands take, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from systolic.chips import CHIPS, Chip, UnknownChipError, chip
from systolic.tiling import Tiles, TilesError

_F = TypeVar("_F", bound=Callable[..., Any])


class ChipNames(click.ParamType):
    """One chip or several with commas."""

    name = "chips"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Chip, ...]:
        """Names to chips, in their order, each once."""
        if not isinstance(value, str):
            return value
        try:
            return tuple({known.name: known for known in map(chip, value.split(","))}.values())
        except UnknownChipError as error:
            self.fail(str(error), param, ctx)


class Sizes(click.ParamType):
    """Whole numbers of at least one, with commas."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Text to numbers, in their order, each once."""
        if not isinstance(value, str):
            return value
        found = []
        for part in value.split(","):
            if not part.strip().isdecimal() or int(part) < 1:
                self.fail(f"{part!r} is no size; give whole numbers of at least 1, such as 512,1024", param, ctx)
            found.append(int(part))
        return tuple(dict.fromkeys(found))


class TileSizes(click.ParamType):
    """Three whole numbers M,K,N."""

    name = "M,K,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Tiles:
        """Text to tiles."""
        if not isinstance(value, str):
            return value
        parts = value.split(",")
        if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
            self.fail(f"{value!r} is no tile; give three whole numbers M,K,N, such as 512,1024,1024", param, ctx)
        tile_m, tile_k, tile_n = map(int, parts)
        try:
            return Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
        except TilesError as error:
            self.fail(str(error), param, ctx)


def chip_option(default: str = "v5e") -> Callable[[_F], _F]:
    """`--chip`."""
    return click.option(
        "--chip",
        "chips",
        type=ChipNames(),
        default=default,
        show_default=True,
        help=f"One or several, with commas: {', '.join(CHIPS)}.",
    )


def output_options(command: _F) -> _F:
    """`--json` and `--quiet`."""
    command = click.option(
        "--json",
        "json_file",
        metavar="FILE|-",
        help="Write the results as one JSON object to FILE; - is standard output, in place of the table.",
    )(command)
    return click.option("--quiet", "-q", is_flag=True, help="No progress bar and no notes on standard error.")(command)
