"""`systolic explain` as its user runs it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import slow_products

import systolic
from systolic.cli import main
from systolic.explaining import Explanation

EXAMPLES = Path(__file__).parents[2] / "examples"
SLOW = f"{EXAMPLES / 'slow_products.py'}:product"
ARGUMENTS = ("--arg", "bf16[1024,512]", "--arg", "bf16[512,1024]", "--param", "tile_k=512", "--chip", "v6e", "-q")


@pytest.mark.exhaustive
def test_a_page_and_a_file_that_opens_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, kept = tmp_path / "report.html", tmp_path / "explained.json"
    code = main(["explain", SLOW, *ARGUMENTS[:-1], "--tries", "2", "--out", str(page), "--json", str(kept)])
    out, err = capsys.readouterr()
    assert code == 0
    (row,) = json.loads(kept.read_text())["rows"]
    found = Explanation.from_json(json.dumps(row))
    assert f"product: {found.run.summary().heading}; now trying changes\n" in err  # ahead of the rest
    assert found.verdict in " ".join(out.split())
    assert page.read_text().count("<svg") or "vega" in page.read_text()
    assert found.verdict.startswith(f"simulated {found.time_us:,.1f} µs ± ")
    assert " on v6e: " in found.verdict
    roles = [each.role for each in found.programs]
    assert roles[:3] == ["this", "xla", "other"]
    assert roles.count("change") == 2
    assert [each.title for each in found.windows] == ["the ramp", "one steady step", "the end"]
    assert all(each.end_us > each.begin_us for each in found.windows)
    assert {each.operand: each.moved_bytes for each in found.traffic} == {
        "lhs_vmem": 1024 * 512 * 2,
        "rhs_vmem": 4 * 512 * 1024 * 2,
        "out_vmem": 1024 * 1024 * 2,
    }
    assert found.vmem is not None
    assert sum(part.size_bytes for part in found.vmem.parts) == found.run.vmem_bytes
    assert found.lines
    assert sum(each.cycles for each in found.regions) <= found.run.cycles
    # The line of the product takes the most, and the lines of the source do not change the program.
    longest = next(each for each in found.line_times if each.where)
    assert "jnp.dot(" in longest.text
    assert longest.where.startswith(str(EXAMPLES / "slow_products.py:"))
    assert sum(each.cycles for each in found.line_times) <= found.run.cycles
    product = functools.partial(slow_products.product, tile_k=512)
    arguments = (jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16), jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16))
    assert systolic.simulate(product, *arguments, chip="v6e").cycles == found.run.cycles
    assert found.steps == 16
    assert found.limiter
    # Changes of the function come first, then what could stand in its place.
    others = [each for each in found.savings if each.title.endswith("in its place")]
    own = [each for each in found.savings if each not in others]
    assert found.savings == (*own, *others)
    for part in (own, others):
        savings = [each.saving or 0.0 for each in part]
        assert savings == sorted(savings, reverse=True)
    # What a saving promises is the time of a program that was simulated.
    times = {each.label: each.time_us for each in found.programs}
    for each in found.savings:
        if each.title in times:
            assert each.time_us == times[each.title]


@pytest.mark.exhaustive
def test_no_change_of_the_result_is_called_a_saving() -> None:
    lhs, rhs = jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16), jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
    idle = functools.partial(slow_products.product, tile_m=512, tile_k=512, tile_n=512)
    found = systolic.explain(idle, lhs, rhs, chip="v5p", tries=3)
    both = next(each for each in found.savings if each.title.startswith("both cores"))
    semantics = functools.partial(idle, semantics=("parallel", "parallel", "arbitrary"))
    applied = systolic.simulate(semantics, lhs, rhs, chip="v5p")
    assert both.time_us == pytest.approx(applied.time_us, rel=1e-6)


def test_copies_around_a_kernel_are_a_finding() -> None:
    lhs, rhs = jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16), jax.ShapeDtypeStruct((2048, 1024), jnp.bfloat16)
    turned = functools.partial(slow_products.product, turned=True, tile_m=512, tile_k=1024, tile_n=512)
    found = systolic.explain(turned, lhs, rhs, chip="v6e", tries=0)
    saving = next(each for each in found.savings if each.title.startswith("leaving out XLA"))
    assert "transpose before the kernel" in saving.why
    assert saving.saving is not None
    assert 0.02 < saving.saving < 0.9


def test_a_plain_function_has_no_kernel_to_change() -> None:
    x = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)
    found = systolic.explain(jnp.matmul, x, x, chip="v5e")
    assert [each.role for each in found.programs] == ["this"]
    assert found.savings == ()


def test_what_the_compiler_refuses_has_no_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["explain", SLOW, *ARGUMENTS, "--chip", "v5e", "--param", "vmem_limit_bytes=65536"])
    assert code == 1
    assert "vmem" in capsys.readouterr().out.lower()


def test_a_function_that_raises_is_a_reason_and_no_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "raising.py"
    file.write_text("def zero(x):\n    raise KeyError('[bold]no[/] such thing')\n")
    code = main(["explain", f"{file}:zero", "--arg", "f32[8,128]", "--chip", "v5e", "-q"])
    captured = capsys.readouterr()
    assert code == 1
    assert "raising.py:zero: failed: KeyError: '[bold]no[/] such thing'" in captured.out.replace("\n", "")
    assert "Traceback" not in captured.out + captured.err


@pytest.mark.exhaustive
def test_an_other_function_that_raises_costs_no_explanation() -> None:
    def raising(*_: object) -> object:
        raise KeyError("no such thing")

    x = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)
    found = systolic.explain(jnp.matmul, x, x, chip="v5e", against=raising, tries=0)
    mine, other = (each.reason for each in found.programs)
    assert mine == ""
    assert other.startswith("KeyError: 'no such thing' (at ")
    assert "no change was tried" in found.verdict or "nothing that was tried" in found.verdict
