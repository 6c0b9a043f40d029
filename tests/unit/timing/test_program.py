"""Programs that run again: every constant counts, and a file gives back what was saved or says why not."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import re
import zlib
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from listing_mutations import compiled_programs
from simulator_listings import V5E, listing

import systolic.simulator
from systolic.chips import Chip, MachineModel, chip
from systolic.chips.constants import ConstantsError, check_sparse_core
from systolic.simulator import SimulatedRun, SimulationError, Unknown
from systolic.timing import Program, ProgramFileError, load_program, prepare_program
from systolic.timing.contents import ProgramContents, parameter_contents
from systolic.timing.program import translated
from systolic.timing.program_file import _KEPT, FORMAT, SavedProgram, read_program, write_program
from systolic.tuning.profiling import without_copies

FIXED = ("mxu_count", "mxu_rows", "mxu_columns", "branch_delay_slots")
GATHER = next(each for each in compiled_programs() if each.chip == "v5e")
INDEX = np.array([3, 1, 1, 0], np.int32)

HLO = """ENTRY %main (n: s32[1]) -> s32[1] {
  %n.1 = s32[1]{0:T(128)} parameter(0), metadata={op_name="n"}
}
"""
# Something for each constant to act on. Strides of a copy, as the compiler writes them, stand in scalar memory.
STRIDES = (32768, 2048, 16, 64, 128, 2, 16384, 64, 4)
EVERYTHING = (
    "%s1_s1 = scalar_parameter_address 0",
    "%s2_s2 = sshll.u32 %s1_s1, 4  ;;  %s3_s2 = int_to_ptr.hbm [resolvable:$true] %s2_s2",
    "%s4_s4 = smov [#allocation5]",
    "%s5_s5 = sshll.u32 %s4_s4, 4  ;;  %s6_s5 = int_to_ptr.vmem [resolvable:$true] %s5_s5",
    "%7 = dma.hbm_to_vmem %s3_s2, 16, %s6_s5, [#allocation8]",
    "%8 = dma.done.wait [#allocation8], 16",
    "%v1_v1 = vld [vmem:[#allocation5] sm:$0xff]",
    "%13 = vpush %v1_v1",
    "%s10_s10 = spop %13",
    "%7 = vmatmul.bf16.gmra.mxu0 %v1_v1",
    "%v2_v2 = vpop.f32.mrf.mxu0",
    *(["%8 = vmatpush.bf16.msra.mxu0 %v1_v1", "%7 = vmatmul.bf16.gmra.mxu0 %v1_v1"] * 40),
    *(["%7 = vxpose.xlu0.b32.cont %v1_v1"] * 9),
    "%s40_s3 = smov 0",
    *(
        line
        for at, word in enumerate(STRIDES)
        for line in (f"%s9{at}_s4 = smov {word}", f"%{at} = sst [smem:[#allocation6 + ${at:#x}]] %s9{at}_s4")
    ),
    "%7 = dma.vmem_to_hbm %s91_s21, 64, %s92_s22, [#allocation2]",
    "%7 = dma.general %s40_s3, 64, %s40_s3, [#allocation1], 131072, [#allocation6], 0, 0 /* hbm-to-vmem */",
    "%7 = dma.hbm_to_vmem %s91_s21, %s10_s10, %s92_s22, [#allocation1]",
    "%8 = dma.done.wait [#allocation1], 69",
)


def everything(known: Chip = V5E) -> Program:
    compiled = replace(GATHER, listings={"TLP": listing(*EVERYTHING)}, utilization={}, top_level_hlo=HLO)
    return translated("everything", known, compiled, ProgramContents(parameters=([5, *[0] * 127],), operands={}))


def gather() -> Program:
    hlo = prepare_program(GATHER, V5E).hlo
    assert hlo is not None
    parameters = tuple(parameter_contents(hlo, [INDEX, None]))
    kept = {("gather.1", 0, 0): [*INDEX.tolist(), *[0] * 124], ("gather.1", 0, 1): Unknown("x", computed=False)}
    return translated("gather", V5E, GATHER, ProgramContents(parameters=parameters, operands=kept))


def came_of(program: Program, machine: MachineModel) -> SimulatedRun | str:
    try:
        return program.run(machine=machine)
    except SimulationError as error:  # an address that counts other bytes leads to other words
        return str(error)


@pytest.mark.parametrize("name", [field.name for field in fields(MachineModel)])
def test_every_constant_counts_or_is_refused(name: str) -> None:
    # HBM that is slow in every cycle after a busy one; on chips the turns take milliseconds.
    cycle_s = 1 / V5E.machine.clock_hz
    turns = {"hbm_slow_period_s": cycle_s, "hbm_slow_load": 0.5, "hbm_slow_s": cycle_s, "hbm_slow_share": 0.25}
    slowing = replace(V5E.machine, **turns)
    program = everything(replace(V5E, machine=slowing))
    value = getattr(slowing, name)
    other = {kind: 2 * rate for kind, rate in value.items()} if isinstance(value, dict) else 2 * value or 7
    machine = replace(slowing, **{name: other})
    if name in FIXED:
        with pytest.raises(ConstantsError, match=f"{name}="):
            program.run(machine=machine)
        return
    found = came_of(program, machine)
    assert found != program.run()
    if isinstance(found, SimulatedRun):
        # It is the same as preparing for such a chip from the beginning.
        assert found == everything(replace(V5E, machine=machine)).run()


def test_a_rate_decides_how_long_the_matrix_units_are_busy() -> None:
    rates = {kind: rate / 2 for kind, rate in V5E.machine.mxu_rows_per_cycle.items()}
    slower = everything().run(machine=replace(V5E.machine, mxu_rows_per_cycle=rates))
    assert slower.cores[0].matrix_busy_cycles == 2 * everything().run().cores[0].matrix_busy_cycles


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hbm_bytes_per_s", 0.0),
        ("hbm_bytes_per_s", float("nan")),
        ("clock_hz", -1e9),
        ("clock_hz", "fast"),
        ("dma_latency_cycles", -1),
        ("dma_latency_cycles", 0.5),
        ("hbm_slow_share", 0.0),
        ("granule_bytes", 0),
        ("mxu_rows_per_cycle", {"bf16": 1.0}),  # other types had rates
        ("mxu_rows_per_cycle", {"f32": 1.0, "bf16": 0.0, "s8": 1.0, "u8": 1.0, "f8": 1.0, "s4": 1.0, "u4": 1.0}),
    ],
)
def test_a_value_that_no_hardware_has(name: str, value: object) -> None:
    with pytest.raises(ConstantsError, match=name):
        everything().run(machine=replace(V5E.machine, **{name: value}))  # pyright: ignore[reportArgumentType]


def test_a_chip_whose_copies_take_no_time() -> None:
    """Profiles of tiles are made with it."""
    assert everything().run(machine=without_copies(V5E).machine).cores[0].copy_stall_cycles < 100


def test_a_chip_is_no_machine_model() -> None:
    with pytest.raises(ConstantsError, match="is not a `MachineModel`"):
        everything().run(machine=V5E)  # pyright: ignore[reportArgumentType]


def test_operations_say_whether_they_are_kernels() -> None:
    assert [op.is_pallas for op in gather().run().cores[0].ops if op.name == "gather.1"] == [True]
    product = next(each for each in compiled_programs() if each.chip == "v7x")
    run = translated("product", chip("v7x"), product, ProgramContents(parameters=(), operands={})).run()
    assert run.cores[0].ops
    assert not any(op.is_pallas for op in run.cores[0].ops)
    assert SimulatedRun.from_json(run.to_json()) == run


# ---- files ----


@pytest.mark.parametrize("make", [everything, gather])
def test_what_was_saved_runs_as_before(tmp_path: Path, make: object) -> None:
    program = make()  # type: ignore[operator]
    program.save(tmp_path / "p")
    for again in (load_program(tmp_path / "p"), pickle.loads(pickle.dumps(program))):
        assert (again.name, again.chip) == (program.name, V5E)
        assert again.run() == program.run()
        assert replace(again.compiled, from_cache=False) == replace(program.compiled, from_cache=False)
        slower = replace(V5E.machine, dma_latency_cycles=2000)
        assert again.run(machine=slower) == program.run(machine=slower)


def test_a_file_keeps_the_constants_unless_a_chip_is_given(tmp_path: Path) -> None:
    slow = replace(V5E, machine=replace(V5E.machine, hbm_bytes_per_s=1e11))
    everything(slow).save(tmp_path / "p")
    assert load_program(tmp_path / "p").run() == everything(slow).run() != everything().run()
    assert load_program(tmp_path / "p", chip="v5e").run() == everything().run()


def test_a_file_keeps_all_of_the_chip_that_a_run_reads() -> None:
    texts = [path.read_text() for path in Path(systolic.simulator.__file__).parent.rglob("*.py")]
    read = {name for text in texts for name in re.findall(r"\bchip\.([a-z]\w*)", text)}
    assert read == {"name", "cores_per_device", "devices_per_chip", *_KEPT}


def test_a_chip_of_ones_own_has_to_be_given(tmp_path: Path) -> None:
    mine = replace(V5E, name="mine", aliases=())
    everything(mine).save(tmp_path / "p")
    with pytest.raises(ProgramFileError, match=r"'mine' is unknown.*pass `chip=`"):
        load_program(tmp_path / "p")
    assert load_program(tmp_path / "p", chip=mine).run() == everything(mine).run()
    with pytest.raises(ProgramFileError, match="it is of mine with 1 cores a device, not of v5p with 2"):
        load_program(tmp_path / "p", chip="v5p")


def test_what_the_first_run_did_not_need_is_an_error_and_no_guess(tmp_path: Path) -> None:
    program = gather()
    unknown = {("gather.1", 0, 0): Unknown("operand 0 of gather.1", computed=False)}
    contents = ProgramContents(parameters=program.contents.parameters, operands=unknown)
    replace(program, contents=contents).save(tmp_path / "p")
    with pytest.raises(SimulationError, match=r"depends on operand 0 of gather\.1"):
        load_program(tmp_path / "p").run()


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p"
    everything().save(path)
    before = path.read_bytes()

    def full(_path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        gather().save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def resealed(data: bytes, change: object) -> bytes:
    """The file with its JSON line changed, and a checksum that is right."""
    first, _, rest = data.partition(b"\n")
    line, _, binary = rest[32:].partition(b"\n")
    head = json.loads(line)
    change(head)  # type: ignore[operator]
    rest = json.dumps(head).encode() + b"\n" + binary
    return first + b"\n" + hashlib.sha256(rest).digest() + rest


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda head: head.pop("name"), "name is missing"),
        (lambda head: head.update(more=1), "more"),
        (lambda head: head.update(chip="v9"), "'v9' is unknown"),
        (lambda head: head.update(chip="v6e"), "mxu_count=2: this program was compiled for mxu_count=4"),
        (lambda head: head.update(cores_per_device=2), "2 cores a device"),
        (lambda head: head.update(key="another"), "checksum"),
        (lambda head: head.update(entry_bytes=-1), "lengths"),
        (lambda head: head.update(entry_bytes=10**12), "lengths"),
        (lambda head: head["machine"].update(clock_hz=0), "clock_hz=0"),
        (lambda head: head.update(compiler_flags={"vmem": "1"}), "'vmem' is not a flag"),
        (lambda head: head.update(compiler_flags={"--xla_tpu_x": "1"}), "flags are none"),
        (lambda head: head.update(compiler_flags={"xla_tpu_x": 1}), "compiler_flags"),
        (lambda head: head["machine"].update(clock_hz="1"), "clock_hz"),
        (lambda head: head["machine"].pop("clock_hz"), "clock_hz is missing"),
        (lambda head: head["contents"][0].update(words=129), "lengths"),
        (lambda head: head["contents"][0].update(words=127), "lengths"),
        (lambda head: head["contents"][0].update(words=-1), "lengths"),
        (lambda head: head["contents"][0].update(index=1), "not in order"),
        (lambda head: head["contents"][0].update(words=True), "words"),
    ],
)
def test_a_head_that_was_tampered_with(tmp_path: Path, change: object, says: str) -> None:
    path = tmp_path / "p"
    everything().save(path)
    path.write_bytes(resealed(path.read_bytes(), change))
    with pytest.raises(ProgramFileError, match=says) as caught:
        load_program(path)
    assert "\n" not in str(caught.value)


def test_another_version_and_other_files(tmp_path: Path) -> None:
    path = tmp_path / "p"
    everything().save(path)
    data = path.read_bytes()
    newer = data.replace(b"format %d\n" % FORMAT, b"format %d\n" % (FORMAT + 1), 1)
    for found, says in [
        (newer, f"format {FORMAT + 1}, and this is format {FORMAT}"),
        (b"", "does not begin"),
        (b"{}", "does not begin"),
        (data[:-1], "checksum"),
        (data + b"x", "checksum"),
    ]:
        path.write_bytes(found)
        with pytest.raises(ProgramFileError, match=says):
            load_program(path)
    with pytest.raises(ProgramFileError, match="cannot read"):
        load_program(tmp_path / "nowhere")
    with pytest.raises(ProgramFileError, match="cannot read"):
        load_program(tmp_path)


def test_any_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "p"
    everything().save(path)
    data = path.read_bytes()
    chance = random.Random(0)
    for at in [*range(40), *(chance.randrange(len(data)) for _ in range(60))]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
        with pytest.raises(ProgramFileError):
            load_program(path)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p"
    everything().save(path)
    first, _, rest = path.read_bytes().partition(b"\n")
    line, _, binary = rest[32:].partition(b"\n")
    entry = binary[: json.loads(line)["entry_bytes"]]
    monkeypatch.setattr("systolic.timing.program_file.MAX_ENTRY_BYTES", 1000)
    rest = line + b"\n" + entry + zlib.compress(bytes(10**6))
    path.write_bytes(first + b"\n" + hashlib.sha256(rest).digest() + rest)
    with pytest.raises(ProgramFileError, match="do not end"):
        load_program(path)


def of_a_slice() -> SavedProgram:
    """Each of four devices has the same first argument, and half of them another second one; two know an operand."""
    same, unknown = [1, 2], Unknown("argument b", computed=False)
    contents = tuple(
        ProgramContents(
            parameters=(same, [3] if number % 2 else unknown), operands={("f", 0, 1): [number]} if number > 1 else {}
        )
        for number in range(4)
    )
    compiled = replace(GATHER, assignment=(0, 1, 3, 2), constants=bytes(range(256)))
    return SavedProgram(name="f", chip=V5E, compiled=compiled, contents=contents, topology="2x2")


def test_a_file_keeps_what_each_device_of_a_slice_has(tmp_path: Path) -> None:
    saved = of_a_slice()
    write_program(tmp_path / "p", saved)
    again = read_program(tmp_path / "p", None)
    assert (again.name, again.chip, again.topology) == ("f", V5E, "2x2")
    assert again.compiled == replace(saved.compiled, from_cache=True)
    assert [str(each) for each in again.contents] == [str(each) for each in saved.contents]
    # What devices have in common is one object: that is how a run knows that one may stand for all.
    assert all(each.parameters[0] is again.contents[0].parameters[0] for each in again.contents)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda head: head.update(topology="2x4"), "it is for 4 devices, where 2x4 has 8"),
        (lambda head: head.update(topology=None), "it is for 4 devices, where no slice has 1"),
        (lambda head: head.update(topology="2x"), "'2x' is not"),
        (lambda head: head["contents"][0].update(partitions=[0, 4]), "more than 4 devices"),
        (lambda head: head["contents"][0].update(partitions=[0, -1]), "more than 4 devices"),
        (lambda head: head["contents"][0].update(partitions=[0, 0]), "not in order"),
        (lambda head: head.update(links=None), "its links are not"),
        (lambda head: head["links"].update(signal_chip_bit=3), "its links are not"),
        (lambda head: head["links"].update(bytes_per_s=0), "bytes_per_s=0"),
        (lambda head: head["links"].update(hop_s=-1.0), "hop_s=-1.0"),
        (lambda head: head.update(host_bytes_per_s=0.0), "its link to the host has 0.0"),
    ],
)
def test_a_head_of_a_slice_that_was_tampered_with(tmp_path: Path, change: object, says: str) -> None:
    path = tmp_path / "p"
    write_program(path, of_a_slice())
    path.write_bytes(resealed(path.read_bytes(), change))
    with pytest.raises(ProgramFileError, match=says):
        load_program(path)


def test_a_file_keeps_constants_of_sparse_cores_that_the_chip_can_have() -> None:
    known = chip("v7x").sparse_core
    assert known is not None
    check_sparse_core(replace(known, stream_bytes_per_s=1e9), known)
    check_sparse_core(None, None)
    for other in (
        None,
        replace(known, tiles_per_core=10**9),
        replace(known, clock_hz=0.0),
        replace(known, index_cycles=-1),
    ):
        with pytest.raises(ConstantsError):
            check_sparse_core(other, known)
