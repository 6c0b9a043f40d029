"""Which lines of the source the instructions of a kernel came from, where it was compiled with them.

Mosaic writes the place behind an instruction: `vmatmul … /* loc("kernel.py":45:21 to :97) */`. What the compiler adds, or
makes of several instructions, has none, nor has the pipeline that Pallas puts around a kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from systolic.simulator.records import OpRun, RegionRun, SimulatedRun

_BUNDLE = re.compile(r"\s*(?P<number>0x[0-9a-f]+|\d+)\s+:")
_PLACE = re.compile(r'/\* loc\("(?P<file>[^"]+)":(?P<line>\d+)')


def lines_of_bundles(listing: str) -> dict[int, Counter[str]]:
    """Counts the instructions of each bundle by their line, "/home/me/kernel.py:45"; those without one are left out."""
    found: dict[int, Counter[str]] = {}
    for text in listing.splitlines():
        if places := _PLACE.findall(text):
            if (bundle := _BUNDLE.match(text)) is not None:
                found[int(bundle["number"], 16)] = Counter(f"{file}:{line}" for file, line in places)
    return found


def with_source_lines(run: SimulatedRun, listings: Mapping[str, str]) -> SimulatedRun:
    """Adds to the regions of a run the lines of their instructions.

    Args:
      run: of a program that was compiled with lines.
      listings: of the program, by operation.
    """
    bundles = {name: lines_of_bundles(text) for name, text in listings.items()}

    def region(known: Mapping[int, Counter[str]], its: RegionRun) -> RegionRun:
        lines = Counter[str]()
        for bundle in range(its.first_bundle, its.first_bundle + its.bundles):
            lines += known.get(bundle, Counter())
        return replace(its, lines=dict(lines))

    def op(its: OpRun) -> OpRun:
        known = bundles.get(its.name, {})
        return replace(its, regions=tuple(region(known, each) for each in its.regions)) if known else its

    return replace(run, cores=tuple(replace(core, ops=tuple(map(op, core.ops))) for core in run.cores))
