"""The ladder: five matmul kernels, each one idea above the one before."""

from importlib import import_module

from systolic.lessons.ladder.rung import IllegalTilesError, Rung

_MODULES = {"v1": "v1_whole", "v2": "v2_rows_columns", "v3": "v3_block", "v4": "v4_tiles", "v5": "v5_accumulator"}

RUNGS: dict[str, Rung]


def __getattr__(name: str) -> object:
    # The rungs are imported when first asked for: imported here, `python -m systolic.lessons.ladder.v3_block` would
    # find its own module loaded already and warn.
    if name != "RUNGS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    rungs = {rung: import_module(f"{__name__}.{module}").RUNG for rung, module in _MODULES.items()}
    globals()["RUNGS"] = rungs
    return rungs


__all__ = ["RUNGS", "IllegalTilesError", "Rung"]
