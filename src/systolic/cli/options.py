"""Options that several commands take, and the parsers of their values."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from systolic.chips import DEFAULT_CHIP, Chip, FlagError, UnknownChipError, checked_flags, chip, chip_names, with_flags
from systolic.cli.tables import FORMATS, TableFormat, choose_format
from systolic.schedule import Tiles, TilesError
from systolic.spec import LARGEST_SIZE

if TYPE_CHECKING:
    from systolic.compiler import WorkerPool

_F = TypeVar("_F", bound=Callable[..., Any])


def whole_number(text: str) -> int | None:
    """Return the number, at most the largest size that a TPU counts; None if the text is not a number."""
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > len(str(LARGEST_SIZE)):  # Python refuses to read very long ones
        return None
    return size if (size := int(digits)) <= LARGEST_SIZE else None


class TextType(click.ParamType):
    """A type whose values are read from text. A default that is a value already stays as it is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self.read(value) if isinstance(value, str) else value

    def read(self, value: str) -> Any:
        """Return the value of a text.

        Raises:
          click.BadParameter: the text is not such a value.
        """
        raise NotImplementedError


WRITTEN_FILE = click.Path(dir_okay=False, path_type=Path)
READ_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

page_option = click.option(
    "--out",
    "page",
    type=WRITTEN_FILE,
    help="Write a page with plots and tables, one HTML file that needs no network. Several chips: the chip's name is "
    "added.",
)
constants_option = click.option(
    "--constants",
    "constants_file",
    type=READ_FILE,
    help="A file of `systolic calibrate --out`, whose constants replace those of its chip.",
)
store_option = click.option(
    "--store",
    "store_file",
    type=WRITTEN_FILE,
    help="SQLite file of all trials, in place of the one in your cache folder.",
)


def count_option(
    name: str,
    default: int,
    help_text: str,
    *,
    parameter: str | None = None,
    smallest: int = 1,
    largest: int | None = None,
) -> Callable[[_F], _F]:
    """Return an option that is a whole number; the command takes it as `parameter`, by default under its own name."""
    names = (name,) if parameter is None else (name, parameter)
    kind = click.IntRange(min=smallest, max=largest)
    return click.option(*names, type=kind, default=default, show_default=True, help=help_text)


class ChipNames(TextType):
    """One chip or several with commas."""

    name = "chips"

    def __init__(self, *, several: bool = True) -> None:
        self._several = several

    def read(self, value: str) -> tuple[Chip, ...]:
        try:
            chips = tuple({one_chip.name: one_chip for one_chip in map(chip, value.split(","))}.values())
        except UnknownChipError as error:
            raise click.BadParameter(str(error)) from error
        if len(chips) > 1 and not self._several:
            raise click.BadParameter(
                f"it takes one chip at a time; give one of {', '.join(one_chip.name for one_chip in chips)}"
            )
        return chips


class CompilerFlag(TextType):
    """A compiler flag, NAME=VALUE."""

    name = "NAME=VALUE"

    def read(self, value: str) -> tuple[str, str]:
        name, equals, text = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r} is not a flag: write NAME=VALUE, such as {_USUAL_FLAG}")
        try:
            return next(iter(checked_flags({name.strip(): text.strip()}).items()))
        except FlagError as error:
            raise click.BadParameter(str(error)) from error


_USUAL_FLAG = "xla_tpu_scoped_vmem_limit_kib=65536"


def flag_option(command: _F) -> _F:
    """Add `--xla-flag` to a command that takes `chips`, which bring the flags along. Apply it before `chip_option`."""

    @functools.wraps(command)
    def flagged(*args: Any, chips: tuple[Chip, ...], xla_flags: tuple[tuple[str, str], ...], **rest: Any) -> Any:
        return command(*args, chips=tuple(with_flags(chip, dict(xla_flags)) for chip in chips), **rest)

    made: Any = flagged
    return xla_flag(made)


def xla_flag(command: _F) -> _F:
    """Add `--xla-flag`, which the command takes as `xla_flags`."""
    return click.option(
        "--xla-flag",
        "xla_flags",
        type=CompilerFlag(),
        multiple=True,
        help=f"A compiler flag for every program, such as {_USUAL_FLAG}. Repeat it for more flags.",
    )(command)


class Sizes(TextType):
    """Whole numbers of at least one, with commas."""

    name = "sizes"

    def read(self, value: str) -> tuple[int, ...]:
        result = []
        for part in value.split(","):
            size = whole_number(part)
            if not size:
                raise click.BadParameter(f"{part!r} is not a size; give whole numbers from 1 to {LARGEST_SIZE}")
            result.append(size)
        return tuple(dict.fromkeys(result))


class TileSizes(TextType):
    """Three whole numbers M,K,N."""

    name = "M,K,N"

    def read(self, value: str) -> Tiles:
        parts = [size for part in value.split(",") if (size := whole_number(part)) is not None]
        if len(parts) != 3 or value.count(",") != 2:
            raise click.BadParameter(f"{value!r} is not a tile; give three whole numbers M,K,N, such as 512,1024,1024")
        tile_m, tile_k, tile_n = parts
        try:
            return Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
        except TilesError as error:
            raise click.BadParameter(str(error)) from error


class FiniteFloat(click.FloatRange):
    """A number in a range; not NaN or infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class MemorySize(TextType):
    """An amount of memory with its unit."""

    name = "size"

    def read(self, value: str) -> int:
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?([KMGT])i?B?", value.strip(), re.IGNORECASE | re.ASCII)
        size_bytes = int(float(match[1]) * 1024 ** (1 + "KMGT".index(match[2].upper()))) if match else 0
        if size_bytes < 1:
            raise click.BadParameter(
                f"{value!r} is not an amount of memory; give one with its unit, such as 512MiB or 4GiB"
            )
        return size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The compiler processes that a command may start, and what each job may use."""

    count: int  # processes at most
    time_limit_s: float  # CPU time of a job, seconds
    memory_limit_bytes: int | None  # of a process and its children; None: chosen by the machine's memory

    def pool(self) -> WorkerPool:
        from systolic.compiler import WorkerPool

        return WorkerPool(
            max_workers=self.count, time_limit_s=self.time_limit_s, memory_limit_bytes=self.memory_limit_bytes
        )


def worker_options(job: str = "one compilation", time_limit_s: float = 300) -> Callable[[_F], _F]:
    """Add `--workers`, `--time-limit` and `--memory-limit`, which the command takes as one argument, `workers`."""

    def decorated(command: _F) -> _F:
        @functools.wraps(command)
        def packed(*args: Any, workers: int, time_limit: float, memory_limit: int | None, **rest: Any) -> Any:
            limits = Workers(count=workers, time_limit_s=time_limit, memory_limit_bytes=memory_limit)
            return command(*args, workers=limits, **rest)

        made: Any = click.option(
            "--memory-limit",
            type=MemorySize(),
            help="Memory of one compiler process, such as 4GiB.  [default: an equal share of the free memory]",
        )(packed)
        made = click.option(
            "--time-limit",
            type=FiniteFloat(min=1),
            default=time_limit_s,
            show_default=True,
            help=f"Seconds of CPU time for {job}. The limit of elapsed time is ten times as long.",
        )(made)
        return count_option("--workers", 2, "Number of compiler processes.")(made)

    return decorated


def chip_option(default: str = DEFAULT_CHIP, *, several: bool = True) -> Callable[[_F], _F]:
    number = "Chips, separated by commas" if several else "The chip"
    return click.option(
        "--chip",
        "chips",
        type=ChipNames(several=several),
        default=default,
        show_default=True,
        help=f"{number}: {', '.join(chip_names())}.",
    )


def output_options(command: _F) -> _F:
    @functools.wraps(command)
    def formatted(*args: Any, form: TableFormat, json_file: str | None, **options: Any) -> Any:
        choose_format(click.get_current_context(), form)
        return command(*args, json_file=json_file or ("-" if form == "json" else None), **options)

    quiet = click.option("--quiet", "-q", is_flag=True, help="No progress bar and no notes on standard error.")
    json_file = click.option(
        "--json",
        "json_file",
        metavar="FILE|-",
        help="Write the results as one JSON object to FILE, or to standard output (-) instead of the table.",
    )
    form = click.option(
        "--format",
        "form",
        type=click.Choice(FORMATS),
        default="table",
        help="The form of tables. markdown and csv have all columns; numbers in csv are not rounded; json is the "
        "same as --json -.",
    )
    return cast(_F, form(json_file(quiet(formatted))))
