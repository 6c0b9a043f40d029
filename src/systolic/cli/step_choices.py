"""Choices of `systolic step`: changes to try, grids of them, slices by chip, and prices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from systolic.chips import Chip
from systolic.cli.function import StaticParameter
from systolic.cli.options import TextType
from systolic.cli.slice_options import AskedSlice
from systolic.support.untrusted import shown

MESH = "mesh"
_F = TypeVar("_F", bound=Callable[..., Any])

# The name and the value of a parameter, or "mesh" and its text.
Change = tuple[str, Any]
Changes = tuple[Change, ...]


class ChangeType(StaticParameter):
    """NAME=VALUE, or mesh=NAME=SIZE,…"""

    def read(self, value: str) -> Change:
        if value.startswith(f"{MESH}="):
            return MESH, value.removeprefix(f"{MESH}=")
        return super().read(value)


class GridType(TextType):
    """NAME=VALUE|VALUE|…, or mesh=NAME=SIZE,…|NAME=SIZE,…"""

    name = "NAME=VALUE|VALUE"

    def read(self, value: str) -> Changes:
        name, equals, values = value.partition("=")
        if not equals or not all(text.strip() for text in values.split("|")):
            raise click.BadParameter(f"{shown(value)} are not values: write NAME=VALUE|VALUE, such as 'batch=1|2'")
        return tuple(ChangeType().read(f"{name}={text.strip()}") for text in values.split("|"))


def by_chip(value: str, example: str) -> dict[str, str]:
    """Read CHIP=TEXT,CHIP=TEXT,… into texts by chip; raise `click.BadParameter` for other text."""
    pairs = [part.partition("=") for part in value.split(",")]
    if not all(chip.strip() and equals and text.strip() for chip, equals, text in pairs):
        raise click.BadParameter(f"{shown(value)} does not say what each chip has: write {example}")
    return {chip.strip(): text.strip() for chip, _, text in pairs}


class PricesType(TextType):
    """The price of a chip an hour, by the chip's name."""

    name = "CHIP=PRICE,…"

    def read(self, value: str) -> Mapping[str, float]:
        prices = {}
        for chip, text in by_chip(value, "v6e=2.7,v5p=4.2").items():
            try:
                prices[chip] = float(text)
            except ValueError:
                prices[chip] = math.nan
            if not 0 < prices[chip] < math.inf:
                raise click.BadParameter(f"{chip}={shown(text)} is not a price: write a number above zero")
        return prices


def choice_options(command: _F) -> _F:
    """Add `--try`, `--grid` and `--price`."""
    made: Any = click.option(
        "--price",
        "prices",
        type=PricesType(),
        default={},
        help="Prices per chip and hour, in any currency: adds the cost of a million tokens.",
    )(command)
    made = click.option(
        "--grid",
        "grids",
        type=GridType(),
        multiple=True,
        help="Simulate all combinations of these values: 'remat=full|minimal'. Repeatable.",
    )(made)
    return click.option(
        "--try",
        "trials",
        type=ChangeType(),
        multiple=True,
        metavar="NAME=VALUE",
        help="Simulate the step with another parameter too: remat=minimal, or mesh=fsdp=4,tensor=2. Repeatable.",
    )(made)


def changes_of(trials: Sequence[Change], grids: Sequence[Changes]) -> list[Changes]:
    """Return the steps to simulate, by their changes: the step itself, unless there is a grid, and what is tried."""
    steps: list[Changes] = [*itertools.product(*grids)] if grids else [()]
    return list(dict.fromkeys([*steps, *((trial,) for trial in trials)]))


def label_of(changes: Changes) -> str:
    """Write changes for people."""
    return " ".join(f"{name}={value}" for name, value in changes)


def check_prices(prices: Mapping[str, Any], chips: Sequence[Chip]) -> None:
    """Raise `click.UsageError` if a price names a chip that is not requested."""
    names = {name for chip in chips for name in (chip.name, chip.generation)}
    for name in prices:
        if name not in names:
            requested_chips = ",".join(chip.name for chip in chips)
            raise click.UsageError(f"--price names {shown(name)}, which is not among --chip {requested_chips}")


def slice_for(requested: AskedSlice, chip: Chip) -> AskedSlice:
    """Return the slice of one chip, whose topology may be given by the chip's name: "v6e=2x4,v5p=2x2x2".

    Raises:
      click.UsageError: no topology is given for this chip.
    """
    if requested.topology is None or "=" not in requested.topology:
        return requested
    topologies = by_chip(requested.topology, "v6e=2x4,v5p=2x2x2")
    for name in (chip.name, chip.generation):
        if name in topologies:
            return replace(requested, topology=topologies[name])
    raise click.UsageError(f"--topology has no slice of {chip.name}: add {chip.name}=…; it has {', '.join(topologies)}")
