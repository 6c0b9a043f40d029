"""Profiles are read as the profiler writes them; damaged ones end in a named error."""

from __future__ import annotations

import gzip
import os
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from traces import Execution, TracedCall, a_profile, fusion

from systolic.compiler import WorkerPool
from systolic.timing import device_trace
from systolic.timing.device_trace import TraceFileError, is_trace, read_trace, trace_files
from systolic.timing.traced_modules import UnreadableTraceError, read_modules

COPY = "%copy.2 = (f32[8]{0}, u32[]{:S(2)}) copy-start(f32[8]{0} %p), cross_program_prefetch_index=0"
LOOP = "%while.1 = (s32[], f32[8]{0}) while((s32[], f32[8]{0}) %tuple), condition=%c, body=%b"


def _execution(fusion_us: float, module: str = "jit_f(77)") -> Execution:
    body = (fusion("fusion.3", fusion_us), TracedCall(text=COPY, time_us=0.0105), fusion("fusion.3", fusion_us))
    loop_us = sum(call.time_us for call in body) + 0.25
    return Execution(module=module, calls=(TracedCall(text=LOOP, time_us=loop_us, inside=body),))


def test_operations_have_their_own_time_in_the_median_execution(tmp_path: Path) -> None:
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(a_profile([[_execution(us) for us in (9.0, 5.0, 5.5)], [_execution(1.0, "jit_other(1)")]]))
    trace = read_modules(file)
    assert trace.planes == ("/host:CPU", "/device:TPU:0", "/device:TPU:1")
    module, other = trace.modules
    assert (module.name, module.base_name, module.device) == ("jit_f(77)", "jit_f", "/device:TPU:0")
    assert (module.device_type, module.is_simulated, other.name) == ("TPU v6 Lite", False, "jit_other(1)")
    assert module.times_us == pytest.approx((19.2605, 11.2605, 12.2605))
    assert module.time_us == pytest.approx(12.2605)
    assert [(op.name, op.category, op.calls) for op in module.ops] == [
        ("while.1", "while", 1),
        ("fusion.3", "output fusion", 2),
        ("copy.2", "copy-start", 1),
    ]
    # A loop without its body, two calls together, and picoseconds: `ProfileData.duration_ns` would say 10 ns.
    assert [op.time_us for op in module.ops] == pytest.approx([0.25, 11.0, 0.0105], abs=0.0011)
    assert module.ops[2].time_us == pytest.approx(0.0105)


def test_a_folder_of_the_profiler_and_gzip(tmp_path: Path) -> None:
    contents = a_profile([[_execution(2.0)]])
    for run in ("2026_01_01", "2026_02_02"):
        (tmp_path / "plugins" / "profile" / run).mkdir(parents=True)
    newest = tmp_path / "plugins" / "profile" / "2026_02_02"
    (newest.parent / "2026_01_01" / "old.xplane.pb").write_bytes(b"not read")
    (newest / "a.xplane.pb.gz").write_bytes(gzip.compress(contents))
    (newest / "b.xplane.pb").write_bytes(contents)
    assert is_trace(tmp_path)
    assert [file.name for file in trace_files(tmp_path)] == ["a.xplane.pb.gz", "b.xplane.pb"]
    assert trace_files(newest) == trace_files(tmp_path)
    trace = read_trace(tmp_path)
    assert [(module.name, module.time_us) for module in trace.modules] == [("jit_f(77)", pytest.approx(5.2605))] * 2


@pytest.mark.exhaustive
def test_a_real_profile_of_a_cpu_has_no_tpu(tmp_path: Path) -> None:
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(jnp.ones((64, 64)) @ jnp.ones((64, 64)))
    with pytest.raises(TraceFileError, match=r"has no programs on a TPU, only .*/host:CPU.*on a machine with a TPU"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "is empty"),
        (b'{"rows": []}', "is not an XSpace, or damaged"),
        (b"\x1f\x8b" + bytes(20), "is damaged gzip"),
        (gzip.compress(bytes(5000))[:-3], "is damaged gzip"),
        (a_profile([[_execution(2.0)]])[:-1], "is not an XSpace, or damaged"),
    ],
)
def test_other_files_are_refused_by_name(contents: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(contents)
    with pytest.raises(UnreadableTraceError) as caught:
        read_modules(file)
    assert f"is {caught.value}".startswith(message)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("systolic.timing.traced_modules.MAX_BYTES", 4999)
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(gzip.compress(bytes(5000)))
    with pytest.raises(UnreadableTraceError, match="larger than 2 GiB"):
        read_modules(file)


def test_an_empty_folder_and_a_pipe(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match=r"has no \*\.xplane\.pb, nor has a run in .*plugins/profile"):
        read_trace(tmp_path)
    os.mkfifo(tmp_path / "host.xplane.pb")
    with pytest.raises(TraceFileError, match="it is a named pipe and not a regular file"):
        read_trace(tmp_path)


def test_a_reader_that_dies_is_an_error_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(__file__, tmp_path / "host.xplane.pb")
    monkeypatch.setattr(device_trace, "read_modules", _abort)
    with pytest.raises(TraceFileError, match="reader of profiles was ended by SIGABRT"):
        read_trace(tmp_path)


@pytest.mark.exhaustive
def test_damaged_profiles_are_read_or_refused() -> None:
    with WorkerPool(max_workers=1) as pool:
        read, refused = pool.submit(_read_damaged, 150).result()
    assert read > 0
    assert refused > 0
    assert read + refused == 150


def _abort(path: Path) -> None:
    os.abort()


def _read_damaged(count: int) -> tuple[int, int]:
    """Cut, flip and overwrite a profile; anything but the named error ends the test."""
    import tempfile

    whole, chance = a_profile([[_execution(2.0)] * 3]), random.Random(41)
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "host.xplane.pb"
        for _ in range(count):
            contents = bytearray(whole)
            at = chance.randrange(len(contents))
            match chance.randrange(3):
                case 0:
                    del contents[at:]
                case 1:
                    contents[at] ^= 1 << chance.randrange(8)
                case _:
                    contents[at : at + 8] = chance.randbytes(8)
            file.write_bytes(contents)
            try:
                read_modules(file)
            except UnreadableTraceError:
                refused += 1
    return count - refused, refused
