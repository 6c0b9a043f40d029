"""The composite action in `examples/ci`: its description, and what its shell steps do in a repository with a kernel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ACTION = Path(__file__).parents[3] / "examples" / "ci" / "action.yml"
SOURCES = Path(__file__).parents[3] / "src"
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")

KERNEL = """
import jax
from jax.experimental import pallas as pl


def double(x, *, rows={rows}):
    def body(x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...] * 2

    block = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(body, out_shape=x, grid=(x.shape[0] // rows,), in_specs=[block], out_specs=block)(x)
"""
TEST = """
import jax
import jax.numpy as jnp
from kernel import double

X = jax.ShapeDtypeStruct((1024, 256), jnp.float32)


def test_double(systolic_check):
    systolic_check(double, X, chip="v5e", reference=lambda x: x * 2, compiles=False, seeds=(0,))
"""


def action() -> dict[str, Any]:
    return yaml.safe_load(ACTION.read_text())


def steps() -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in action()["runs"]["steps"] if "run" in step}


def test_the_description_is_one_of_a_composite_action() -> None:
    described = action()
    assert described["runs"]["using"] == "composite"
    assert {"name", "description", "inputs", "runs"} <= set(described)
    for step in described["runs"]["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert "uses" in step or step["shell"] == "bash"  # which a composite action has to say


def test_every_input_is_described_and_used() -> None:
    described = action()
    used = {name[len("inputs.") :] for text in _EXPRESSION.findall(ACTION.read_text()) for name in text.split()
            if name.startswith("inputs.")}  # fmt: skip
    assert used == set(described["inputs"])
    assert all(each["description"] and ("default" in each or each["required"]) for each in described["inputs"].values())


def test_no_input_is_pasted_into_a_script() -> None:
    # An input comes from a pull request: in a variable it is text, in a script it would be commands.
    assert not [step for step in steps().values() if _EXPRESSION.search(step["run"])]


class Runner:
    """Runs shell steps as GitHub does: bash with -e and pipefail, expressions of `env` filled in before."""

    def __init__(self, folder: Path, inputs: dict[str, str]) -> None:
        self.folder = folder
        self.repository = folder / "repository"
        self.repository.mkdir()
        given = {name: each.get("default", "") for name, each in action()["inputs"].items()}
        self.known = {f"inputs.{name}": text for name, text in (given | inputs).items()}
        self.summary = folder / "summary.md"
        programs = folder / "programs"
        programs.mkdir()
        for name, command in (("python", ""), ("systolic", "-m systolic")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
            program.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": f"{self.repository}:{SOURCES}",
            "RUNNER_TEMP": str(folder),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }

    def git(self, *arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        done = subprocess.run(command, cwd=self.repository, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, rows: int) -> str:
        (self.repository / "kernel.py").write_text(KERNEL.format(rows=rows))
        (self.repository / "test_kernel.py").write_text(TEST)
        self.git("add", ".")
        self.git("commit", "-q", "-m", "kernel")
        return self.git("rev-parse", "HEAD")

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        step = steps()[name]
        filled = {key: _EXPRESSION.sub(lambda found: self.known[found[1]], value) for key, value in step["env"].items()}
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.repository,
            env=self.environment | filled,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    found = Runner(
        tmp_path,
        {
            "systolic": "wheels/systolic-0.4.0.dev0-py3-none-any.whl[tpu]",
            "tests": "test_kernel.py",
            "function": "kernel.py:double",
            "arguments": "--arg f32[1024,256]",
        },
    )
    found.git("init", "-q")
    return found


def test_what_is_installed_is_one_argument_of_pip(runner: Runner) -> None:
    python = runner.folder / "programs" / "python"
    python.write_text('#!/bin/sh\nfor each in "$@"; do echo "$each"; done\n')
    done = runner.step("Install")
    assert done.returncode == 0
    assert done.stdout.split("\n")[:-1] == ["-m", "pip", "install", runner.known["inputs.systolic"], "pytest"]


@pytest.mark.parametrize("has_one", [True, False])
def test_a_comment_is_written_anew_or_for_the_first_time(runner: Runner, has_one: bool) -> None:
    (runner.folder / "comparison.md").write_text("faster")
    gh, log = runner.folder / "programs" / "gh", runner.folder / "log"
    edited = "true" if has_one else '[ "$4" != --edit-last ]'
    gh.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\n{edited}\n')
    gh.chmod(0o755)
    runner.known |= {"github.token": "secret", "github.event.pull_request.number": "7"}
    assert runner.step("Comment on the pull request").returncode == 0
    comment = f"pr comment 7 --body-file {runner.folder}/comparison.md"
    wanted = [comment.replace("7 ", "7 --edit-last ", 1), *([] if has_one else [comment])]
    assert log.read_text().splitlines() == wanted


@pytest.mark.slow
def test_kernels_are_checked(runner: Runner) -> None:
    runner.commit(256)
    done = runner.step("Check kernels, and their times against the committed ones")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    (runner.repository / "test_kernel.py").write_text(TEST.replace("x * 2", "x * 3"))
    assert runner.step("Check kernels, and their times against the committed ones").returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "status"), [(8, 256, 0), (256, 8, 1)])
def test_a_slower_kernel_fails_and_both_are_in_the_summary(
    runner: Runner, before: int, after: int, status: int
) -> None:
    runner.known["github.event.pull_request.base.sha"] = runner.commit(before)
    runner.commit(after)
    done = runner.step("Compare with the base")
    assert done.returncode == status, done.stdout + done.stderr
    summary = runner.summary.read_text()
    assert "kernel.py:double" in summary
    assert "µs" in summary
