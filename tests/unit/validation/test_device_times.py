"""Device times of recorded operations: their file, samples and halves, and a program for every kind."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from systolic.simulator import SimulatedRun
from systolic.simulator.core_records import CoreRun, OpRun, RegionRun
from systolic.timing import Measurement
from systolic.validation.device_times import for_fitting, read_device_times, sampled
from systolic.validation.errors import OpError, PublishedProgram, compared, program_or_reason
from systolic.validation.foreign import foreign_program
from systolic.validation.kind_statistics import kind_statistics
from systolic.validation.published import PublishedFileError, PublishedRow
from systolic.validation.recorded import KINDS_IN_JAX
from systolic.validation.recorded_flags import recorded_flags

# One row of every kind of the published file.
ROWS = read_device_times(Path(__file__).parent / "data" / "device_times.jsonl")
HAS_TOKAMAX = importlib.util.find_spec("tokamax") is not None
RECORD: dict[str, Any] = {
    "op": "gated_linear_unit",
    "chip": "v6e",
    "arguments": {"x": "bf16[8,128]", "weights": "bf16[128,2,256]", "activation": "jax._src.nn.functions.silu"},
    "config": {},
    "time_us": 5.0,
    "spread": 0.01,
    "samples": 5,
}


def test_recorded_gathers_are_compiled_as_they_were() -> None:
    assert recorded_flags("v6e", "ragged_gather") == {"xla_tpu_offload_gather_to_sparsecore": "false"}
    assert recorded_flags("v7x", "ragged_gather") == recorded_flags("v6e", "csa_gather") == {}
    gathers = [row for row in ROWS if row.op == "ragged_gather"]
    assert gathers
    assert all(row.flags == recorded_flags(row.chip, row.op) for row in gathers)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.kind)
def test_every_kind_has_a_program_or_says_which_package_it_needs(row: PublishedRow) -> None:
    if row.kind not in KINDS_IN_JAX and not HAS_TOKAMAX:
        with pytest.raises(OpError, match="needs the package tokamax"):
            foreign_program(row)
        return
    program = foreign_program(row)
    assert program.what.startswith(f"{row.op} ")
    if row.kind in KINDS_IN_JAX:  # kernels ask for their chip when they are traced, and on a CPU there is none
        results = jax.tree.leaves(jax.eval_shape(program.function, *program.arguments))
        assert all(result.size for result in results)


def test_no_kind_of_xla_needs_a_package() -> None:
    assert len(ROWS) == len({row.kind for row in ROWS})
    assert set(KINDS_IN_JAX) <= {row.kind for row in ROWS}


def test_gradients_have_the_shapes_of_their_operands() -> None:
    rows = {row.kind: row for row in ROWS}
    for kind, operands in (
        ("linear_softmax_cross_entropy_loss_vjp", slice(2, 5)),
        ("chunked_xla_linear_softmax_cross_entropy_loss_vjp", slice(2, 5)),
        ("normalization_vjp", slice(3, 6)),
        ("dot_product_attention_vjp", slice(3, 7)),
    ):
        program = foreign_program(rows[kind])
        results = jax.eval_shape(program.function, *program.arguments)
        shapes = [operand and operand.shape for operand in program.arguments[operands]]
        assert [result and result.shape for result in results] == shapes


def test_a_sample_is_of_each_chip_and_kind_and_grows() -> None:
    records = [{**RECORD, "arguments": {**RECORD["arguments"], "x": f"bf16[{size},128]"}} for size in range(1, 41)]
    rows = [_row(record, chip, line) for line, record in enumerate(records) for chip in ("v6e", "v5p")]
    few, many, other = (sampled(rows, count, seed) for count, seed in ((3, 0), (7, 0), (3, 1)))
    assert Counter(row.chip for row in many) == {"v6e": 7, "v5p": 7}
    assert set(_lines(few)) < set(_lines(many))
    assert set(few_lines := _lines(few)) == set(_lines(sampled(reversed(rows), 3, 0))) != set(_lines(other))
    assert len(few_lines) == 6
    assert sampled(rows, 100, 0) == tuple(rows)


def test_an_operation_is_in_one_half_on_every_chip_with_any_tiles() -> None:
    records = [{**RECORD, "arguments": {"x": f"bf16[{size},128]"}} for size in range(200)]
    halves = [for_fitting(_row(record, "v6e")) for record in records]
    assert halves == [for_fitting(_row({**record, "config": {"tile": 8}}, "v5p")) for record in records]
    assert 60 < sum(halves) < 140


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arguments": {**RECORD["arguments"], "weights": "bf16[64,2,256]"}}, "no .* and .k, 2, n."),
        ({"arguments": {**RECORD["arguments"], "x": "bf17[8,128]"}}, "x='bf17.8,128.' is not an array"),
        ({"arguments": {**RECORD["arguments"], "x": "bf16[999999999,999999999]"}}, "more elements than any device"),
        ({"arguments": {**RECORD["arguments"], "activation": "tanh"}}, "activation='tanh' is unknown"),
        ({"arguments": {**RECORD["arguments"], "bias": "bf16[8]"}}, "bias='bf16.8.' is not known for this operation"),
        ({"op": "fused_moe"}, "op 'fused_moe' is not known"),
    ],
)
def test_a_row_that_is_not_understood_says_why(change: dict[str, object], said: str) -> None:
    reason = program_or_reason(_row({**RECORD, **change}, "v6e"), foreign_program)
    assert not isinstance(reason, PublishedProgram)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(reason)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "line 2: .*op"),
        (json.dumps({**RECORD, "time_us": 0}), "line 2: .*time_us"),
        (json.dumps({**RECORD, "arguments": []}), "line 2: .*arguments"),
        ("{", "line 2: not JSON"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "times.jsonl"
    file.write_text(f"{json.dumps(RECORD)}\n{line}\n")
    with pytest.raises(PublishedFileError, match=said):
        read_device_times(file)


def _lines(rows: Iterable[PublishedRow]) -> list[tuple[str, int]]:
    return [(row.chip, row.line) for row in rows]


def _row(record: dict[str, Any], chip: str, line: int = 1) -> PublishedRow:
    parts = {name: record[name] for name in ("op", "arguments", "config")}
    return replace(ROWS[0], line=line, chip=chip, kind=record["op"], **parts)


def test_a_time_shorter_than_the_compiled_program_can_take_is_another_programs_and_counted_apart() -> None:
    row = replace(ROWS[0], chip="v6e", arguments={"x": "f32[8,128]"}, timing="device")
    program = PublishedProgram(chip="v6e", what="an op", function=len, arguments=())
    region = RegionRun(first_bundle=0, bundles=175, depth=1, executions=1000, cycles=300_000, matrix_stall_cycles=0)
    places = {"scope": "", "calls": 1, "begin_cycles": 0, "end_cycles": 400_000}
    # 100 µs of bundles, 50 of HBM's bandwidth.
    op = OpRun(name="fusion", cycles=400_000, regions=(region,), hbm_read_bytes=82_000_000, **places)
    core = CoreRun(
        core=0,
        cycles=400_000,
        ops=(op, replace(op, name="copy", regions=())),  # another 50 µs of HBM
        copy_stall_cycles=0,
        copy_overhead_cycles=0,
        matrix_stall_cycles=0,
        matrix_busy_cycles=0,
        hbm_read_bytes=164_000_000,
        hbm_written_bytes=0,
        copies=0,
    )
    run = SimulatedRun(chip="v6e", clock_hz=1.75e9, cores=(core,), prefetch_cycles=0, matrix_units=2, bundles=1)
    timed = Measurement(chip="v6e", provenance="simulated", time_us=run.time_us, run=run)
    shorter, longer = (
        compared(replace(row, published_us=published_us), program, timed, dispatch_us=0.0)
        for published_us in (149.0, 151.0)
    )
    assert longer.counted
    assert not longer.other_program
    assert longer.least_us == pytest.approx(150.0)
    assert not shorter.counted
    assert shorter.reason.startswith("another program was timed")
    kinds = kind_statistics([shorter, longer])
    assert {(kind.rows, kind.other_programs, kind.refused) for kind in kinds} == {(1, 1, 0)}


def test_gradients_of_losses_that_begin_from_a_bfloat16_are_of_an_older_package() -> None:
    row = next(row for row in ROWS if row.kind == "linear_softmax_cross_entropy_loss_vjp")
    foreign_program(row)
    with pytest.raises(OpError, match="another program was timed: an older compiler's"):
        foreign_program(replace(row, arguments={**row.arguments, "out": "bf16[]", "dout": "bf16[]"}))
