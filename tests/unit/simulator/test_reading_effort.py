"""Reading large programs: what is left out does not change what is read."""

from __future__ import annotations

import ast
import gc
from contextlib import nullcontext
from typing import Any

import pytest
from simulator_listings import V5E, listing

from systolic.simulator import SimulationError, preparation, prepare_listings
from systolic.simulator.reading.blocks import Block
from systolic.simulator.translating import detours


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("bundle", ["%s1_s1 = smov 0", "("])
def test_the_collector_rests_while_listings_are_read(
    bundle: str, is_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = preparation.parse_listing
    meanwhile: list[bool] = []

    def spied(*args: Any) -> Any:
        meanwhile.append(gc.isenabled())
        return parse(*args)

    monkeypatch.setattr(preparation, "parse_listing", spied)
    try:
        if not is_enabled:
            gc.disable()
        with pytest.raises(SimulationError) if bundle == "(" else nullcontext():
            prepare_listings({"TLP": listing(bundle)}, V5E)
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
    assert meanwhile == [False]


def blocks(*targets: tuple[int | None, int | None]) -> list[Block]:
    """Return blocks of one bundle, each with its targets: taken, None without a branch, and following."""
    result = []
    for number, (taken, following) in enumerate(targets):
        branch = None if taken is None else number
        result.append(Block(first=number, last=number, branch=branch, taken=taken, following=following, last_cycles=1))
    return result


def detours_of(bodies: list[list[str]], *targets: tuple[int | None, int | None]) -> dict[int, detours.Detour]:
    def compiled(source: str) -> Any:
        ast.parse(source)
        return source

    return detours.with_detours(bodies, blocks(*targets), {"s1", "s2"}, {"copy", "load"}, compiled)


FORK = [detours.BRANCH, "    block = 2", "else:", "    block = 1"]
DIAMOND = ((2, 1), (None, 3), (None, 3), (None, None))  # block 0 branches to 2 or 1; both lead to 3
END = ["return t"]


@pytest.mark.parametrize(
    ("line", "is_harmless"),
    [
        ("s1 = load(s2, 'no word')", True),
        ("s1 = load(s2, 'copy or return from')  # copy, line 7", True),
        ('s1 = load(s2, "it\'s a copy")', True),
        ("yield t", True),
        ("copy(t, s2)", False),
        ("t = yield from load(t)", False),
        ("return t", False),
    ],
)
def test_a_detour_has_no_other_effects(line: str, is_harmless: bool) -> None:
    detour = detours_of([list(FORK), [line], ["s1 = s2"], END], *DIAMOND)
    assert list(detour) == ([0] if is_harmless else [])


def test_code_that_is_in_no_detour_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = ast.parse
    monkeypatch.setattr(detours.ast, "parse", lambda source: parsed.append(source) or parse(source))
    loop = (0, 1)  # block 0 branches back to itself
    assert not detours_of([["s1 = 1", *FORK], END], loop, (None, None))
    assert not parsed
