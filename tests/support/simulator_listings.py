"""Small listings, written by hand, for the tests of the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from systolic.chips import Chip, chip
from systolic.simulator import SimulatedRun, prepare_listings

V5E = chip("v5e")


def listing(*bundles: str) -> str:
    """Numbers bundles as the compiler does. `TAG|` stands before the code of one, comments on regions behind it."""
    lines = ["= control target key start", "LB: loop body", ""]
    for address, bundle in enumerate(bundles):
        tag, bar, code = bundle.rpartition("|")
        code, comment, regions = code.partition("/* Start") if "/* Start" in code else code.partition("/* End")
        lines.append(f"  {address:#x} {tag if bar else ''}: > {{ {code.strip()} }} {comment}{regions}")
    return "\n".join(lines) + "\n"


def simulate_listings(listings: Mapping[str, str], chip: Chip, **options: Any) -> SimulatedRun:
    """Executes compiled listings on a chip's model."""
    return prepare_listings(listings, chip).run(chip, **options)


def simulate(*bundles: str, chip_name: str = "v5e", called: dict[str, tuple[str, ...]] | None = None) -> SimulatedRun:
    """Runs a top-level program, and what it calls by name."""
    listings = {"TLP": listing(*bundles), **{name: listing(*code) for name, code in (called or {}).items()}}
    return simulate_listings(listings, chip(chip_name))


def shown(register: str) -> tuple[str, ...]:
    """Bundles that make a register's value visible: as the size of a copy from HBM, in granules."""
    return (f"%90 = dma.hbm_to_vmem %s91_s91, {register}, %s92_s92, [#allocation90]",)


def value(*bundles: str, register: str, chip_name: str = "v5e") -> int:
    """Return the contents of `register` after these bundles."""
    run = simulate(*bundles, *shown(register), chip_name=chip_name)
    return run.hbm_read_bytes // chip(chip_name).machine.granule_bytes // chip(chip_name).cores_per_device


def loop(rounds: int, *body: str, slots: int = 4) -> tuple[str, ...]:
    """A loop of `body`, whose branch has `slots` delay slots, the last of them with the end of its region."""
    return (
        "%s1_s1 = smov 0",
        "LB|%s2_s1 = sphi %s1_s1, %s3_s1 /* Start region 5 */",
        *body,
        f"%s3_s1 = sadd.s32 1, %s2_s1  ;;  %p1_p1 = scmp.ge.s32.totalorder %s2_s1, {rounds - 1}",
        "%9 = sbr.rel (!%p1_p1) target = $region5",
        *["" for _ in range(slots - 1)],
        "/* End region 5 */",
    )
