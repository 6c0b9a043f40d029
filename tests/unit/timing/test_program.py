"""Programs that run again: every constant counts, and a file gives back what was saved or says why not."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import re
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from listing_mutations import compiled_programs
from saved_programs import GATHER, everything, gather
from simulator_listings import V5E

import systolic.simulator
from systolic.chips import chip
from systolic.chips.constants import ConstantsError, check_sparse_core
from systolic.simulator import SimulatedRun, SimulationError, Unknown
from systolic.timing import ProgramFileError, load_program
from systolic.timing.contents import ProgramContents
from systolic.timing.program import translated
from systolic.timing.program_file import _KEPT, FORMAT, SavedProgram, read_program, write_program


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
