"""Kernels of the lessons can be pasted into somebody's project: they import JAX and NumPy, and rungs are short."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

import pytest

from systolic.lessons import LESSONS
from systolic.lessons.ladder import RUNGS

LESSONS_FOLDER = Path(__file__).parents[3] / "src" / "systolic" / "lessons"
RUNG_FILES = [LESSONS_FOLDER / "ladder" / f"{rung.file}.py" for rung in RUNGS.values()]
KERNEL_FILES = sorted((LESSONS_FOLDER / "kernels").glob("[a-z]*.py"))
ALLOWED = {"jax", "numpy", *sys.stdlib_module_names}
LINES_OF_A_RUNG = 80


def foreign_imports(text: str) -> set[str]:
    """Packages that a file imports and that are neither JAX, nor NumPy, nor Python's own."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(f".{node.module or ''}" if node.level else (node.module or "").split(".")[0])
    return found - ALLOWED


def code_lines(text: str) -> int:
    """Lines that hold code: without docstrings, comments and empty lines."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


@pytest.mark.parametrize("path", [*RUNG_FILES, *KERNEL_FILES], ids=lambda path: path.stem)
def test_a_kernel_imports_jax_and_numpy_alone(path: Path) -> None:
    text = path.read_text("utf-8")
    assert foreign_imports(text) == set()
    assert "__main__" not in text


@pytest.mark.parametrize("path", RUNG_FILES, ids=lambda path: path.stem)
def test_a_rung_is_short(path: Path) -> None:
    assert code_lines(path.read_text("utf-8")) <= LINES_OF_A_RUNG


def test_planted_faults_are_found() -> None:
    assert foreign_imports("import jax, jaxtyping\ndef f():\n    from systolic.schedule import Tiles") == {
        "jaxtyping",
        "systolic",
    }
    assert foreign_imports("from .rules import bands\nfrom jax import numpy") == {".rules"}
    assert (
        code_lines('"""A\nB"""\n\n# why\nx = (1,  # one\n     2)\ndef f():\n    """C"""\n    return """D\nE"""\n') == 5
    )


def test_every_file_is_in_a_table() -> None:
    listed = {kernel for entry in LESSONS.values() for kernel in entry.kernels}
    assert listed == {path.stem for path in KERNEL_FILES}
    rungs = {path.stem for path in (LESSONS_FOLDER / "ladder").glob("v[0-9]*.py")}
    assert rungs == {rung.file for rung in RUNGS.values()}
