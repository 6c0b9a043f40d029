"""Run every command and Python block of README.md, CONTRIBUTING.md and docs/, or say here why it is not run.

A page is gone through from top to bottom in a folder of its own, which holds what its text takes for granted. By
default the quick commands of each page run; with `-m slow` all, since a later one may need what an earlier one wrote.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from command_lines import check_parsed
from markdown_blocks import Step, UnknownBlockError, steps
from trials import SUBJECT, trial

from systolic.cli import main
from systolic.compiler import CompilerMissing, check_available
from systolic.store import TrialStore

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).parent / "files"
DOCS = ROOT / "docs"
GENERATED = DOCS / "generated"  # made of docstrings and help by every build of the pages
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in DOCS.rglob("*.md") if not page.is_relative_to(GENERATED)),
]

# Commands are looked up here by how they begin, and the longest beginning decides. One that is in no table fails:
# somebody has to say whether it may be run. QUICK: ten seconds or so, by default.
QUICK = (
    "sed -i",
    "systolic calibrate",
    "systolic chips",
    "systolic doctor",
    "systolic check my_kernel.py",
    "systolic ladder v3",
    "systolic plan",
    "systolic run",
    "systolic simulate",
    "systolic step examples/transformer:train --config tiny",
    "systolic table",
    "systolic validate",
)

SLOW = (
    "systolic bench --suite llm --chip v6e",  # a quarter of an hour
    "systolic bench --suite moe --only",  # six programs
    "systolic explain",  # half a minute to minutes: each change that it tries is compiled
    "systolic compare",  # what explain wrote
    "systolic step examples/transformer:train --config tiny --param width=128 --param loss=plain",  # eight programs
    "systolic ladder all",
    "systolic ladder v4 v5 --chip v6e --sizes 4096 --sweep",
    "systolic lessons",  # minutes each, where parts are compiled for several chips
    "systolic simulate --json",  # of slices, what compare reads
    "systolic simulate experts.py",  # large layers on eight devices
    "systolic simulate jax.numpy:matmul",  # three chips, whose compilers take their time over XLA's own product
    "systolic run examples/train_mlp.py --chip v6e --no-values",  # weights of real size: minutes of compiling
    "systolic tune",  # up to two minutes
    "systolic check examples/subcores.py",  # thirty-two subcores
    "systolic check examples/",  # three chips
    "python benchmarks/exhaustive_sweep.py model",
    "python benchmarks/foreign_kernels.py",
)
SLOW_PYTHON = ("check.md", "explain.md", "tune_function.md", "tuning.md")  # they check, explain and tune

# These are parsed: the command, its options and their values exist.
NOT_RUN = {
    "systolic validate published_times.csv published_ops.csv": "an hour, of files that are not here",
    "systolic validate published_collectives.csv": "programs on slices, of a file that is not here",
    "systolic validate published_device_times.jsonl": "hours, of a file that is not here",
    "make": "tests would run tests, and the demo takes an hour",
    "python -m pip install": "it installs into the environment that runs the tests",
    "systolic bench --suite square,llm,fused,edges": "four hundred products on three chips: hours",
    "systolic bench --suite moe --against nothing": "four hundred products on two chips: hours where none is kept",
    'systolic bench --suite moe --only "mixtral': "forty programs, some of them large: half an hour",
    "systolic bench --suite layers": "whole layers, sixty-six programs: an hour and more",
    "systolic bench --suite loss": "losses by five programs, with gradients: half an hour",
    "systolic bench --suite quantized": "fifteen products and XLA's own on three chips: ten minutes",
    "systolic bench --suite sharded": "twenty products on eight chips, most of them large: an hour",
    "systolic bench --suite sparse": "five products by five programs: ten minutes",
    "systolic tune --suite llm": "thirty-three products, up to two minutes each",
    "systolic tune examples/public_kernels.py": "kernels of whole layers on three chips, by up to ten tiles: hours",
    "systolic tune --suite square --chip v5e,v6e --scheduler": "needs a cluster; test_tune_command.py starts one",
    "systolic table profile": "three hundred tiles: an hour",
    "systolic compare run.json profile": "needs a profile of a TPU; test_cli_compare_trace.py makes one by hand",
    "systolic tpu": "rents a TPU: it needs a project at Google, and costs money",
    "systolic step": "models of billions of weights: minutes of compiling each",
    "python benchmarks/sharded_functions.py": "seventy-five functions on each of four chips: half an hour",
    "python benchmarks/ring_products.py": "eight products by three programs on eight chips: half an hour",
    "systolic run examples/train_sharded.py": "JAX has one device in this process; test_run_command.py starts another",
    "systolic bench --suite moe-layer": "sixty layers of experts, also over eight devices: hours",
    "python benchmarks/ring_mlp.py": "an MLP and its gradients by five programs on eight chips: half an hour",
    "python benchmarks/public_gather.py": "needs tpu-inference; six products by four programs: half an hour",
    "python benchmarks/ragged_all_to_all.py": "two exchanges by three programs on eight chips: ten minutes",
    "python benchmarks/step_loss.py": "a loss in three forms on eight chips: ten minutes",
    "python benchmarks/training_steps.py": "whole steps on up to 256 chips: hours",
    "dask": "runs until it is stopped; test_tune_command.py starts both",
    "python benchmarks/step_estimate.py": "hundreds of kernels on three chips: an hour",
    "python benchmarks/check_kernels.py": "two hundred kernels: test_checked_kernels.py runs some of them",
    "python benchmarks/check_configurations.py": "a thousand kernels; test_check_agrees_with_compiler.py runs forty",
    "python benchmarks/exhaustive_sweep.py sweep": "a thousand kernels: twenty minutes, and it writes benchmarks/data",
    "python benchmarks/exhaustive_sweep.py search": "sixteen searches from nothing: ten minutes",
    "python benchmarks/explained_savings.py": "ten kernels with eight changes each: half an hour",
    "python benchmarks/operation_costs.py": "ninety operations on four chips: ten minutes, and it writes the page",
    "python benchmarks/tile_profiles.py": "sixty shapes on four chips: half an hour",
}

# 1 where the page says so: a check that finds something, or a result that is slower.
MAY_END_WITH_1 = (
    "systolic check examples/planted_faults.py",
    "systolic check my_kernel.py",
    "systolic compare before.json after.json --fail-above",
    "systolic ladder all",  # v1 and v2 are refused where they are too large
)

QUICK_PAGES = ("README",)  # of `make test`; `make test-exhaustive` runs the others

QUICK_LIMIT_S, SLOW_LIMIT_S = 240, 3600


Table = tuple[str, ...] | dict[str, str]


def table_of(command: str) -> Table | None:
    """QUICK, SLOW or NOT_RUN; None: nobody has said."""
    starts = [(start, table) for table in (QUICK, SLOW, NOT_RUN) for start in table if command.startswith(start)]
    return max(starts, key=lambda found: len(found[0]))[1] if starts else None


def is_run(step: Step) -> bool:
    return bool(step.python) or table_of(step.command) in (QUICK, SLOW)


def is_slow(page: Path, step: Step) -> bool:
    if step.python:
        return page.name in SLOW_PYTHON and not step.file
    return table_of(step.command) is SLOW


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies, because some commands write beside what they read."""
    for name in ("examples", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()  # pages that commands write
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYSTOLIC_STORE", str(tmp_path / "kept.sqlite"))
    for name, time_us in (("before.sqlite", 10.0), ("after.sqlite", 9.0)):
        TrialStore(tmp_path / name).keep(SUBJECT, trial(256, time_us))
    assert main(["table", "export", "before.json", "--store", "before.sqlite", "--quiet"]) == 0
    return tmp_path


def run_page(page: Path, folder: Path, capfd: pytest.CaptureFixture[str], *, slow: bool) -> None:
    script: list[str] = []
    for step in steps(page):
        if step.file:
            (folder / step.file).write_text(step.python)
        elif is_slow(page, step) and not slow:
            continue
        elif step.python:
            script.append(step.python)
        elif is_run(step):
            codes = (0, 1) if step.command.startswith(MAY_END_WITH_1) else (0,)
            what = f"{page.name}:{step.line}: {step.command}"
            if step.command.startswith("systolic ") and not slow:
                run_in_this_process(shlex.split(step.command)[1:], what, codes, capfd)
            else:
                run(shlex.split(step.command), folder, what, codes, slow)
    if script:  # one process: a later block uses the names of an earlier one
        (folder / "blocks_of_this_page.py").write_text("\n\n".join(script))
        run(["python", "blocks_of_this_page.py"], folder, f"Python blocks of {page.name}", (0,), slow)


def run_in_this_process(
    arguments: list[str], what: str, codes: tuple[int, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """Run a command without starting Python and JAX for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = main(arguments)
    printed = capfd.readouterr()
    assert code in codes, f"{what}\nended with {code}\n{printed.out[-2000:]}\n{printed.err[-4000:]}"


def run(words: list[str], folder: Path, what: str, codes: tuple[int, ...], slow: bool) -> None:
    programs = {"systolic": [sys.executable, "-m", "systolic"], "python": [sys.executable], "sed": ["sed"]}
    environment = {"JAX_PLATFORMS": "cpu", **os.environ, "PYTHONWARNINGS": "ignore"}
    limit_s = SLOW_LIMIT_S if slow else QUICK_LIMIT_S
    try:
        done = subprocess.run(
            [*programs[words[0]], *words[1:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"{what}\nhad not ended after {limit_s} s: SLOW and NOT_RUN are for such")
    printed = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.returncode in codes, f"{what}\nended with {done.returncode}\n{printed}"


def pages_with(*, slow: bool) -> list[Path]:
    """Pages with something to run; one with a block that nobody knows is among them, and fails."""
    found = []
    for page in PAGES:
        try:
            if any(is_run(step) and is_slow(page, step) == slow and not step.file for step in steps(page)):
                found.append(page)
        except UnknownBlockError:
            found.append(page)
    return found


def name(page: Path) -> str:
    return str(page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).with_suffix(""))


def need_compiler() -> None:
    try:
        check_available()
    except CompilerMissing as error:
        pytest.skip(str(error))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page",
    [
        page if page.stem in QUICK_PAGES else pytest.param(page, marks=pytest.mark.exhaustive)
        for page in pages_with(slow=False)
    ],
    ids=name,
)
def test_quick_commands_run(page: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    need_compiler()
    run_page(page, folder, capfd, slow=False)


@pytest.mark.slow
@pytest.mark.timeout(4 * SLOW_LIMIT_S)
@pytest.mark.parametrize("page", pages_with(slow=True), ids=name)
def test_all_commands_run(page: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    need_compiler()
    run_page(page, folder, capfd, slow=True)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_exists(page: Path, folder: Path) -> None:
    """Also of those that run: whether an option exists is known in a second."""
    for step in steps(page):
        if not step.command:
            continue
        assert table_of(step.command) is not None, f"{page.name}:{step.line}: {step.command} is in no table"
        check_parsed(shlex.split(step.command), folder, ROOT)


def test_the_tables_name_no_command_that_is_gone() -> None:
    commands = [step.command for page in PAGES for step in steps(page) if step.command]
    for table in (QUICK, SLOW, tuple(NOT_RUN), MAY_END_WITH_1):
        gone = [start for start in table if not any(command.startswith(start) for command in commands)]
        assert gone == []
