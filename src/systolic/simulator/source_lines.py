"""Source lines of a kernel's instructions, where it was compiled with them.

Mosaic writes the place after an instruction: `vmatmul … /* loc("kernel.py":45:21 to :97) */`. Instructions that the
compiler adds, or makes of several, have none, nor has the pipeline that Pallas puts around a kernel.
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
    """Return each bundle's source lines, "/home/me/kernel.py:45", and their shares; bundles without one are skipped."""
    result: dict[int, dict[str, float]] = {}
    for text in listing.splitlines():
        if (places := _PLACE.findall(text)) and (bundle := _BUNDLE.match(text)) is not None:
            count = Counter(f"{file}:{line}" for file, line in places)
            result[int(bundle["number"], 16)] = {
                line: bundles_of_line / len(places) for line, bundles_of_line in count.items()
            }
    return result


def with_source_lines(run: SimulatedRun, listings: Mapping[str, str]) -> SimulatedRun:
    """Add the lines of their instructions to the regions of a run.

    Args:
      run: a program's that was compiled with lines.
      listings: the program's, by operation.
    """
    bundles = {name: lines_of_bundles(text) for name, text in listings.items()}

    def region(lines_of: Mapping[int, Mapping[str, float]], region_run: RegionRun) -> RegionRun:
        lines = defaultdict[str, float](float)
        for bundle in range(region_run.first_bundle, region_run.first_bundle + region_run.bundles):
            for line, share in lines_of.get(bundle, {}).items():
                lines[line] += share
        return replace(region_run, lines=dict(lines))

    def op(op_run: OpRun) -> OpRun:
        lines_of = bundles.get(op_run.name, {})
        return (
            replace(op_run, regions=tuple(region(lines_of, stretch) for stretch in op_run.regions))
            if lines_of
            else op_run
        )

    return replace(run, cores=tuple(replace(core, ops=tuple(map(op, core.ops))) for core in run.cores))
