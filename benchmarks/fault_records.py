"""Trials and programs that cases of `faults.py` write and read, and functions that run in processes to be killed."""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import replace
from itertools import count
from pathlib import Path

from systolic.compiler import CompiledProgram, CompilerRefusal, ProgramCache
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import MatmulSpec
from systolic.store import Subject, Trial, TrialStore

PROBLEM = MatmulSpec.of(512, 1024, 2048, "bfloat16")
SUBJECT = Subject.here(PROBLEM, "v6e")
# Another compiler's subject: its trials need not be legal here, so there may be any number of them.
ELSEWHERE = replace(SUBJECT, libtpu="0.0")
OTHER = Subject.here(MatmulSpec.of(2048, 4096, 512, "int8"), "v5e")
WRITERS = 4


def trial(number: int, *, tile_m: int = 128) -> Trial:
    """Return a trial unique to a number: its reason, its time and its tile along n hold `num`."""
    tiles = Tiles(tile_m=tile_m, tile_k=256, tile_n=128 * number)
    config = KernelConfig(tiles=tiles, subtile_m=tile_m, subtile_n=128 * number)
    return Trial(
        config=config,
        status="ok",
        modelled_us=9.5,
        simulated_us=1000.0 + number,
        stalls={"copy": 0.3},
        bundles=number,
    )


def number_of(trial: Trial) -> int:
    """Return the number that `trial` was called with."""
    assert trial.config is not None
    return trial.config.tiles.tile_n // 128


def program(number: int) -> CompiledProgram:
    """Return a program unique to a number."""
    return CompiledProgram(
        listings={"TLP": f"bundles of {number}\n" * (1000 + number), "mm.1": "more é"},
        utilization={"TLP": "table"},
        sparse_listings={},
        vmem_report="{}",
        top_level_hlo=f"HloModule m{number}",
        generated_code_bytes=number,
        temp_bytes=2,
        argument_bytes=3,
        output_bytes=4,
        cost_flops=5.0,
        cost_bytes_accessed=None,
        chip="v5e",
        jax_version="1",
        libtpu_version="2",
        compile_s=0.5,
        key=str(number),
        from_cache=False,
    )


def check_program(found: CompiledProgram | CompilerRefusal, number: int) -> None:
    """Check that this is exactly the program of that number.

    Raises:
      AssertionError: it is not.
    """
    if found != replace(program(number), from_cache=True):
        raise AssertionError(f"program {number} came back changed")


def write_trials(file: Path, writer: int) -> None:
    """Store trials until killed, and print the number of each after it is stored."""
    store = TrialStore(file)
    for number in count(1):
        number_written = writer + WRITERS * number
        store.keep(ELSEWHERE, trial(number_written))
        print(number_written, flush=True)


def write_programs(folder: Path, writer: int) -> None:
    """Store programs until killed, and print the number of each after it is stored."""
    cache = ProgramCache(folder=folder)
    for number in count(1):
        number_written = writer + WRITERS * number
        with warnings.catch_warnings(record=True) as caught:  # for example that another process holds the lock
            warnings.simplefilter("always")
            cache.put(str(number_written), program(number_written))
        if not caught:
            print(number_written, flush=True)


def die(how: int, after_s: float, by_signal: bool) -> None:
    """End this process by a signal, or by an exit code."""
    time.sleep(after_s)
    if by_signal:
        os.kill(os.getpid(), how)
        time.sleep(10)
    os._exit(how)
