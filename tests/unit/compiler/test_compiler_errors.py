import pickle
import sys

import jax
import pytest

from systolic.compiler import (
    CompilerCrash,
    CompilerError,
    CompilerMissing,
    CompilerRefusal,
    CompilerTimeout,
    TaskError,
    check_available,
)
from systolic.compiler.blame import source_line

SCOPED = (
    "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\n"
    "Ran out of memory in memory space vmem while allocating on stack for %f.1 = f32[2048,2048]{1,0:T(8,128)} "
    'custom-call(%a.1, %b.1), custom_call_target="tpu_custom_call". Scoped allocation with size 48.82M and limit '
    "16.00M exceeded scoped vmem limit by 32.82M. It should not be possible to run out of scoped vmem - \n"
    "See https://openxla.org/xla/errors/error_1001 for more details."
)
WHOLE = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem. Used 193.82M of "
    "128.00M vmem. Exceeded vmem capacity by 65.82M.\n\nProgram vmem requirement 193.82M"
)
SMALL = SCOPED.replace("48.82M", "256.0K").replace("16.00M", "1B")
EXACT = (
    "RESOURCE_EXHAUSTED: Allocation (size=268435456) would exceed memory (size=134217728) :: #allocation2 "
    "[shape = 'u8[268435456]{0}', space=vmem, size = 0x10000000, scoped] :: f.1"
)
SMEM = EXACT.replace("space=vmem", "space=smem") + " This is the raw byte size of this window in VMEM."
HBM = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (256.00G) exceeds "
    "available HBM (15.75G)."
)
MATMUL = (
    "INTERNAL: Mosaic failed to compile TPU kernel: E2001: CompileTimeMosaicUnsupportedRhsType: Unsupported matmul RHS "
    "type on target: vector<128x128xi8>\nSee https://openxla.org/xla/errors/error_2001 for more details."
)
BLOCK = (
    "The Pallas TPU lowering currently requires that the last two dimensions of your block shape are divisible by 8 "
    "and 128 respectively, or be equal to the respective dimensions of the overall array."
)
MIB = 2**20


@pytest.mark.parametrize(
    ("text", "kind", "requested", "available"),
    [
        (SCOPED, "vmem", round(48.82 * MIB), 16 * MIB),
        (WHOLE, "vmem", round(193.82 * MIB), 128 * MIB),
        (SMALL, "vmem", 256 * 1024, 1),
        (EXACT, "vmem", 256 * MIB, 128 * MIB),
        (SMEM, "other", 256 * MIB, 128 * MIB),
        (HBM, "other", 256 * 2**30, round(15.75 * 2**30)),
        (MATMUL, "unsupported", None, None),
        ("E2002: CompileTimeMosaicUnsupportedOp: vector.gather", "unsupported", None, None),
        ("INTERNAL: Mosaic failed to compile TPU kernel: Bad lhs type", "unsupported", None, None),
        (BLOCK, "other", None, None),
        ("", "other", None, None),
    ],
)
def test_kind_and_bytes_come_from_the_text(text, kind, requested, available):
    refusal = CompilerRefusal.from_text(text)
    assert (refusal.kind, refusal.requested_bytes, refusal.available_bytes) == (kind, requested, available)
    assert refusal.message == text
    assert refusal.summary
    assert "\n" not in refusal.summary


def test_the_summary_is_the_sentence_that_matters():
    assert CompilerRefusal.from_text(SCOPED).summary == (
        "Scoped allocation with size 48.82M and limit 16.00M exceeded scoped vmem limit by 32.82M"
    )
    assert CompilerRefusal.from_text(WHOLE).summary == "Used 193.82M of 128.00M vmem"
    assert CompilerRefusal.from_text(MATMUL).summary == (
        "E2001: CompileTimeMosaicUnsupportedRhsType: Unsupported matmul RHS type on target: vector<128x128xi8>"
    )
    newer = MATMUL.replace("kernel:", "kernel with MLIR module name `body` HLO name `kernel.1`:")
    assert CompilerRefusal.from_text(newer).summary == CompilerRefusal.from_text(MATMUL).summary


def test_the_line_is_found_in_a_location_of_the_text():
    text = f'at location: loc("dot_general:"("dot/dot"(callsite("ki"("{__file__}":10:11 to :66) at "f"("x.py":1:2)))))'
    assert source_line(RuntimeError(text)) == f"{__file__}:10 in ki"
    assert source_line(RuntimeError(text.replace(__file__, "/no/such/file.py"))) is None
    assert source_line(RuntimeError(text.replace(__file__, jax.__file__))) is None


def test_a_text_that_tells_nothing_gets_the_callers_kind():
    refusal = CompilerRefusal.from_text("float16", default="unsupported", where="f.py:3 in kernel")
    assert refusal.kind == "unsupported"
    assert str(refusal) == "float16 (at f.py:3 in kernel)"


@pytest.mark.parametrize(
    "error",
    [
        CompilerMissing(),
        CompilerRefusal.from_text(SCOPED, where="f.py:3 in kernel"),
        CompilerCrash(label="f", exit_code=None, signal_name="SIGABRT", stderr_tail="Check failed: x == y"),
        CompilerTimeout(label="f", limit_s=1.5),
        TaskError("no", remote_traceback="Traceback"),
    ],
)
def test_errors_survive_pickling(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert isinstance(copy, CompilerError)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_a_crash_quotes_the_failed_check():
    crash = CompilerCrash(
        label="f", exit_code=None, signal_name="SIGABRT", stderr_tail="x\nF1 Check failed: a == b\n at"
    )
    assert str(crash) == "the worker process ended by SIGABRT during f: Check failed: a == b"


def test_a_missing_compiler_names_the_command(monkeypatch):
    monkeypatch.delitem(sys.modules, "libtpu", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CompilerMissing, match=r'not installed: python -m pip install "jax\[tpu\]') as caught:
        check_available()
    assert "\n" not in str(caught.value)
