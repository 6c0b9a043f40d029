"""Blocks that are commands, Python, or neither, and blocks that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_lines import WrongCommandError, check_parsed
from markdown_blocks import UnknownBlockError, steps

ROOT = Path(__file__).parents[2]


def found(tmp_path: Path, text: str) -> list[tuple[int, str]]:
    page = tmp_path / "page.md"
    page.write_text(text)
    return [(step.line, step.file or step.command or step.python) for step in steps(page)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Run\n\n    systolic chips  # all of them\n", [(3, "systolic chips")]),
        ("    make a # of b\n    make c\n", [(1, "make a"), (2, "make c")]),
        ("    systolic plan \\\n        1\n    make 'x#y'\n", [(1, "systolic plan 1"), (3, "make 'x#y'")]),
        ("    systolic chips  # and\n                    # more\n", [(1, "systolic chips")]),
        ("    systolic chips\n\n    v5e and so on\n", [(1, "systolic chips")]),
        ("    $ systolic chips\n    v5e (and so on)\n", [(1, "systolic chips")]),
        ("```console\n$ systolic chips\nv5e\n```\n", [(2, "systolic chips")]),
        ("```bash\n# first\nsystolic chips\n```\n", [(3, "systolic chips")]),
        ("```text\nsystolic chips\nf(x)\n```\n", []),
        ("```python\nx = 1\n\ny = 2\n```\n", [(2, "x = 1\n\ny = 2")]),
        ("```python\n# mine.py\nx = 1\n```\n", [(2, "mine.py")]),
        ("````python\nx = '''\n```\n'''\n````\n", [(2, "x = '''\n```\n'''")]),
        ("A sentence that\n    systolic chips goes on\n", []),
        ("    z = lhs @ rhs + bias             dz = act'(z)\n", []),
        ("    out = lhs @ rhs\n", []),
        ("```{toctree}\nmake x\n```\n", []),
    ],
)  # fmt: skip
def test_steps(tmp_path: Path, text: str, wanted: list[tuple[int, str]]) -> None:
    assert found(tmp_path, text) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("    run = systolic.simulate(fn)\n", "looks like Python"),
        ("```\nimport systolic\n```\n", "looks like Python"),
        ("    systolic chips\n    perl -e 1\n", "begins with no known program"),
        ("```bash\nperl -e 1\n```\n", "begins with no known program"),
        ("```rust\nfn main() {}\n```\n", "how to run a block of 'rust'"),
    ],
)
def test_a_block_that_nobody_knows_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UnknownBlockError, match=said):
        found(tmp_path, text)


@pytest.mark.parametrize(
    "words",
    [
        ["systolic", "chips", "--nothing"],
        ["systolic", "chop"],
        ["systolic", "simulate", "jax.numpy:matmul", "--chip", "v99"],
        ["systolic", "table", "shown"],
        ["make", "nothing"],
        ["python", "benchmarks/tile_profiles.py", "accuracy", "--nothing"],
        ["python", "-m", "systolic.nothing"],
        ["python", "-m", "pip", "install", ".[nothing]"],
        ["perl"],
    ],
)
def test_a_command_that_does_not_exist_is_refused(words: list[str]) -> None:
    with pytest.raises(WrongCommandError):
        check_parsed(words, ROOT, ROOT)


def test_a_file_that_an_earlier_command_writes_need_not_be_there(tmp_path: Path) -> None:
    check_parsed(["systolic", "compare", "before.json", "after.json"], tmp_path, ROOT)
