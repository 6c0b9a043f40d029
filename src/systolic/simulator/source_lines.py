"""Which lines of the source the instructions of a kernel came from, where it was compiled with them.

Mosaic writes the place behind an instruction: `vmatmul … /* loc("kernel.py":45:21 to :97) */`. What the compiler adds,
or makes of several instructions, has none, nor has the pipeline that Pallas puts around a kernel.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from systolic.simulator.core_records import OpRun, RegionRun
from systolic.simulator.records import SimulatedRun

_BUNDLE = re.compile(r"\s*(?P<number>0x[0-9a-f]+|\d+)\s+:")
_PLACE = re.compile(r'/\* loc\("(?P<file>[^"]+)":(?P<line>\d+)')


def lines_of_bundles(listing: str) -> dict[int, dict[str, float]]:
    """Says of each bundle which lines its instructions came from, "/home/me/kernel.py:45", and which share of those
    that came from any. Bundles of no line are left out.
    """
    found: dict[int, dict[str, float]] = {}
    for text in listing.splitlines():
        if (places := _PLACE.findall(text)) and (bundle := _BUNDLE.match(text)) is not None:
            count = Counter(f"{file}:{line}" for file, line in places)
            found[int(bundle["number"], 16)] = {line: each / len(places) for line, each in count.items()}
    return found


def with_source_lines(run: SimulatedRun, listings: Mapping[str, str]) -> SimulatedRun:
    """Adds to the regions of a run the lines of their instructions.

    Args:
      run: of a program that was compiled with lines.
      listings: of the program, by operation.
    """
    bundles = {name: lines_of_bundles(text) for name, text in listings.items()}

    def region(known: Mapping[int, Mapping[str, float]], its: RegionRun) -> RegionRun:
        lines = defaultdict[str, float](float)
        for bundle in range(its.first_bundle, its.first_bundle + its.bundles):
            for line, share in known.get(bundle, {}).items():
                lines[line] += share
        return replace(its, lines=dict(lines))

    def op(its: OpRun) -> OpRun:
        known = bundles.get(its.name, {})
        return replace(its, regions=tuple(region(known, each) for each in its.regions)) if known else its

    return replace(run, cores=tuple(replace(core, ops=tuple(map(op, core.ops))) for core in run.cores))
