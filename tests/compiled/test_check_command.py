"""`systolic check` as its user runs it."""

from __future__ import annotations

import functools
import json
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import products
import pytest

import systolic
from systolic.checking import CheckFailedError, CheckReport
from systolic.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
FAULTS = EXAMPLES / "planted_faults.py"


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, CheckReport]:
    code = main(["check", *arguments, "--json", "-", "-q"])
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["ok"] == (code == 0)
    return code, CheckReport.from_json(json.dumps(document["rows"][0]))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fault", "k", "rules"),
    [
        ("dropped_tail", 1000, {"dropped-tail", "wrong-result"}),
        ("racing_copy", 1024, {"race", "order"}),
        ("uninitialised_accumulator", 1024, {"uninitialised"}),
    ],
)
def test_planted_faults_are_found(capsys: pytest.CaptureFixture[str], fault: str, k: int, rules: set[str]) -> None:
    code, report = checked(
        capsys,
        f"{FAULTS}:{fault}",
        *("--arg", f"bf16[512,{k}]", "--arg", f"bf16[{k},512]", "--chip", "v5e,v6e"),
        *("--reference", f"{FAULTS}:reference", "--seeds", "2"),
    )
    assert code == 1
    assert {each.rule for each in report.findings if each.grade == "error"} == rules
    assert all(verdict.accepted for verdict in report.verdicts)  # the compiler sees none of them
    assert all("planted_faults.py" in each.where for each in report.findings if each.grade == "error")


@pytest.mark.exhaustive
def test_a_sound_kernel_is_ok_and_says_what_it_moves(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = checked(
        capsys,
        f"{EXAMPLES / 'products.py'}:v5",
        *("--arg", "bf16[1024,512]", "--arg", "bf16[512,512]", "--chip", "v6e"),
        *("--param", "tile_m=256", "--param", "tile_k=256", "--param", "tile_n=256"),
        *("--reference", f"{EXAMPLES / 'products.py'}:product_reference", "--seeds", "2"),
    )
    assert code == 0
    (kernel,) = report.kernels
    assert kernel.grid == (4, 2, 2)
    lhs, rhs, out, acc = kernel.operands
    assert (lhs.fetches, lhs.moved_bytes, lhs.least_bytes) == (16, 2 * 1024 * 512 * 2, 1024 * 512 * 2)
    assert (rhs.fetches, rhs.moved_bytes) == (16, 4 * 512 * 512 * 2)
    assert (out.fetches, out.moved_bytes) == (8, 1024 * 512 * 2)
    assert acc.vmem_bytes == 256 * 256 * 4
    (verdict,) = report.verdicts
    assert verdict.vmem_bytes is not None
    assert kernel.vmem_bytes == pytest.approx(verdict.vmem_bytes, rel=0.25)
    assert report.run.ran
    assert report.run.error is not None
    assert report.run.tolerance is not None
    assert 0 < report.run.error <= report.run.tolerance


def test_the_table_names_the_rule_the_line_and_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--arg", "bf16[512,1000]", "--arg", "bf16[1000,512]", "--no-run", "-q"]
    assert main(["check", f"{FAULTS}:dropped_tail", *arguments]) == 1
    out = capsys.readouterr().out
    for words in ("not ok, 2 errors", "dropped-tail", "planted_faults.py:", "the last 488 of 1000", "pad it to 1024"):
        assert words in out


def test_in_a_test_of_pytest() -> None:
    x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    small = functools.partial(products.v5, tile_m=128, tile_k=128, tile_n=128)
    systolic.check(small, x, x, chip="v5e", run=False).raise_on_error()
    wide = jax.ShapeDtypeStruct((256, 300), jnp.bfloat16)
    with pytest.raises(CheckFailedError, match="k=300"):
        systolic.check(small, wide, jax.ShapeDtypeStruct((300, 256), jnp.bfloat16), run=False).raise_on_error()


BROKEN = """
import jax, jax.numpy as jnp, os
from jax.experimental import pallas as pl

def raises(x):
    raise RuntimeError("out of luck")

def kills(x):
    os.abort()

def plain(x):
    return x + 1

def misaligned(x):
    def kernel(x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...]
    block = pl.BlockSpec((12, 100), lambda i: (i, 0))
    return pl.pallas_call(kernel, out_shape=x, grid=(2,), in_specs=[block], out_specs=block)(x)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "code", "rule", "words"),
    [
        ("raises", 1, "trace", "out of luck"),
        ("kills", 1, "trace", "SIGABRT"),
        ("plain", 0, "no-kernel", "no pallas_call"),
        ("misaligned", 1, "block-alignment", "12"),
    ],
)
def test_bad_functions_end_in_a_finding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, code: int, rule: str, words: str
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(textwrap.dedent(BROKEN))
    got, report = checked(capsys, f"{file}:{name}", "--arg", "f32[24,200]", "--no-run")
    assert got == code
    found: list[Any] = [each for each in report.findings if each.rule == rule]
    assert found, [str(each) for each in report.findings]
    assert any(words in f"{each.value} {each.detail}" for each in found)


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "nowhere.py:f", "--arg", "f32[8]"],
        ["check", f"{FAULTS}:nothing", "--arg", "f32[8,8]", "--no-run"],
        ["check", f"{FAULTS}:dropped_tail", "--arg", "f33[8,8]"],
        ["check", f"{FAULTS}:dropped_tail", "--param", "tile_m"],
        ["check", f"{FAULTS}:dropped_tail", "--reference", "nowhere.py:f"],
    ],
)
def test_a_wrong_call_is_said_to_be_one(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main([*arguments, "-q"]) == 2
    assert capsys.readouterr().err


ENDLESS = """
import os, sys, time
import jax, jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

def tracing(x):
    while True:
        pass

def kernel(x):
    def body(x_vmem, out_vmem):
        turns = lax.while_loop(lambda j: j >= 0, lambda j: jnp.where(j > 5, 0, j + 1), pl.program_id(0))
        out_vmem[...] = x_vmem[...] + turns
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(body, out_shape=x, grid=(2,), in_specs=[block], out_specs=block)(x)

def index_map(x):
    def rows(i):
        return lax.while_loop(lambda j: j >= 0, lambda j: jnp.where(j > 5, 0, j + 1), i), 0
    def body(x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...]
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        body, out_shape=x, grid=(2,), in_specs=[pl.BlockSpec((8, 128), rows)], out_specs=block)(x)

def leaves(x):
    sys.exit(7)

def breaks_libtpu(x):
    def body(x_vmem, out_vmem):
        values = x_vmem[...].reshape(-1)
        out_vmem[...] = jnp.take(values, values.astype(jnp.int32)).reshape(out_vmem.shape)
    return pl.pallas_call(body, out_shape=x)(x)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "shape", "rule", "words", "fix", "line"),
    [
        ("tracing", "16,128", "trace", "of CPU time, while the function was being traced", "this line", "in tracing"),
        pytest.param(
            "kernel",
            "16,128",
            "run",
            "being interpreted on the CPU",
            "the kernel's loops end",
            "in kernel",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "index_map",
            "16,128",
            "run",
            "index maps were being followed",
            "loops of its index maps",
            "in index_map",
            marks=pytest.mark.exhaustive,
        ),
        ("leaves", "16,128", "trace", "SystemExit(7)", "raise an error", "in leaves"),
        ("breaks_libtpu", "1,128", "compiler-crash", "at work: Check failed: ", "reduce the kernel", ""),
    ],
)
def test_what_does_not_end_is_told_from_what_breaks_the_compiler(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    shape: str,
    rule: str,
    words: str,
    fix: str,
    line: str,
) -> None:
    file = tmp_path / "endless.py"
    file.write_text(ENDLESS)
    limits = ["--time-limit", "8" if rule == "run" else "4", "--seeds", "1", *([] if rule == "run" else ["--no-run"])]
    code, report = checked(capsys, f"{file}:{name}", "--arg", f"f32[{shape}]", *limits)
    # The compiler's failure is no fault of the kernel.
    assert code == (0 if rule == "compiler-crash" else 1)
    assert ("no answer of the compiler" in report.conclusion) == (rule == "compiler-crash")
    found = [each for each in report.findings if each.rule == rule and words in each.value]
    assert len(found) == 1, [str(each) for each in report.findings]
    assert fix in found[0].fix
    assert found[0].where.endswith(line)
    assert "see the text below" not in "".join(each.fix for each in report.findings)


@pytest.mark.exhaustive
def test_without_the_compiler_the_rules_and_the_run_have_the_word(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (f"{FAULTS}:racing_copy", "--arg", "bf16[512,1024]", "--arg", "bf16[1024,512]", "--seeds", "2")
    code, report = checked(capsys, *arguments, "--no-compile")
    assert code == 1
    assert {each.rule for each in report.findings if each.grade == "error"} >= {"race"}
    assert report.kernels
    assert [verdict.accepted for verdict in report.verdicts] == [None]
    assert not report.compared
    code, report = checked(capsys, *arguments, "--no-compile", "--no-run")
    assert (code, report.run.ran) == (0, False)
