"""Command lines, failures and archives of TPU machines: all that needs no gcloud."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import tarfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import systolic
from systolic.chips import CHIPS
from systolic.cloud import gcloud, jobs, project
from systolic.cloud.errors import MachineError, MachineNotFoundError, RefusedError, TpuCallError, failure
from systolic.cloud.gcloud import Address
from systolic.cloud.offers import create_line

WHERE = Address(name="my-tpu", zone="us-west4-a", project="mine")


def creation(**machine: Any) -> gcloud.Line:
    unset = {"chip_name": "", "accelerator_type": "", "runtime_version": "", "spot": False}
    return create_line(WHERE, **{**unset, **machine})


@pytest.mark.parametrize(
    ("machine", "accelerator_type", "runtime_version"),
    [
        ({}, "v5litepod-1", "v2-alpha-tpuv5-lite"),
        ({"chip_name": "v4"}, "v4-8", "tpu-ubuntu2204-base"),
        ({"chip_name": "v5p"}, "v5p-8", "v2-alpha-tpuv5"),
        ({"chip_name": "trillium"}, "v6e-1", "v2-alpha-tpuv6e"),
        ({"accelerator_type": "v6e-4"}, "v6e-4", "v2-alpha-tpuv6e"),
        ({"accelerator_type": "v5litepod-8", "chip_name": "v5e"}, "v5litepod-8", "v2-alpha-tpuv5-lite"),
        ({"runtime_version": "mine"}, "v5litepod-1", "mine"),
        ({"chip_name": "v7x", "accelerator_type": "tpu7x-8", "runtime_version": "new"}, "tpu7x-8", "new"),
    ],
)
def test_defaults_follow_from_the_chip(machine: dict[str, Any], accelerator_type: str, runtime_version: str) -> None:
    types = (f"--accelerator-type={accelerator_type}", f"--version={runtime_version}")
    assert creation(**machine)[-2:] == types
    assert creation(**machine, spot=True)[-3:] == (*types, "--spot")


def test_a_chip_that_is_not_offered_says_why() -> None:
    for name in set(CHIPS) - {"v4", "v5e", "v5p", "v6e"}:
        with pytest.raises(TpuCallError, match="https://"):
            creation(chip_name=name)


@given(st.text(max_size=70))
def test_no_name_can_be_taken_for_a_flag(name: str) -> None:
    try:
        made = Address(name=name)
    except TpuCallError:
        return
    assert made.name[0].isalpha()
    assert len(made.name) <= 63
    assert made.name.replace("-", "a").isalnum()
    assert made.name.isascii()


def all_lines(text: str) -> list[gcloud.Line]:
    """Every command line, with a text wherever a user's may stand."""
    where = Address(name="my-tpu", zone=text, project=text)
    machine = {"chip_name": "", "accelerator_type": text, "runtime_version": text, "spot": True}
    return [create_line(where, **machine), gcloud.line("delete", where, "--quiet"), *jobs.lines(where, "job")]


@given(st.text(alphabet=st.characters(exclude_characters="\0"), min_size=1))
def test_no_text_of_a_users_becomes_a_flag(text: str) -> None:
    for line, plain in zip(all_lines(text), all_lines("word"), strict=True):
        flags, plain_flags = ([word.split("=")[0] for word in words if word[:2] == "--"] for words in (line, plain))
        assert flags == plain_flags
        assert shlex.split(shlex.join(line)) == list(line)


def test_nothing_is_run_through_a_shell() -> None:
    for path in Path(systolic.__file__).parent.rglob("*.py"):
        if "subprocess" not in path.read_text() and "import os" not in path.read_text():
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.keyword) and node.arg == "shell"), path
            assert not (isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.system", "os.popen")), path


@pytest.mark.parametrize(
    ("verb", "words", "kind", "fix"),
    [
        ("create", "RESOURCE_EXHAUSTED: Quota limit 'TPUV6E' has been exceeded", RefusedError, "no quota"),
        ("create", 'Error code 8: There is no more capacity in the zone "us-c"', RefusedError, "another --zone"),
        ("create", "ALREADY_EXISTS: Resource 'nodes/n' already exists", RefusedError, "take another name"),
        ("create", "Reauthentication failed. Please run: $ gcloud auth login", RefusedError, "not signed in"),
        ("create", "NOT_FOUND: accelerator type v6e-3 not found in zone", MachineError, "exit code 1"),
        ("describe", "NOT_FOUND: Resource 'nodes/n' was not found", MachineNotFoundError, "there is no my-tpu"),
        ("describe", "Please run: $ gcloud auth login", MachineError, "not signed in"),
        ("delete", "NOT_FOUND: was not found", MachineNotFoundError, "there is no my-tpu"),
        ("ssh", "[/usr/bin/ssh] exited with return code [255].", MachineError, "the connection to my-tpu broke"),
        ("scp", "Could not fetch resource: NOT_FOUND", MachineError, "exit code 1"),
    ],
)
def test_failures_are_one_line_with_a_fix(verb: str, words: str, kind: type[MachineError], fix: str) -> None:
    said = f"Request issued\nERROR: (gcloud.compute.tpus.tpu-vm.{verb}) {words}\n - more\x1b[2J\n"
    error = failure(verb, "my-tpu", 1, said)
    assert type(error) is kind
    assert fix in str(error)
    assert words in str(error)
    assert str(error).isprintable()


def test_a_remote_programs_words_are_not_gclouds() -> None:
    said = "ERROR: quota: not found, already exists\ngcloud auth login\n"
    for verb in ("ssh", "create", "describe"):
        error = failure(verb, "my-tpu", 3, said)
        assert (type(error), error.returncode) == (MachineError, 3)


# --- the archive -----------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project; and a small package in place of systolic's."""
    package = tmp_path / "lib" / "systolic"
    (package / "part" / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("NAME = 'größe'\n", "utf-8")
    (package / "part" / "numbers.json").write_text("[1]")
    (package / "part" / "__pycache__" / "old.pyc").touch()
    monkeypatch.setattr(systolic, "__file__", str(package / "__init__.py"))
    folder = tmp_path / "a project"
    (folder / "sub dir").mkdir(parents=True)
    (folder / "sub dir" / "größe.py").write_text("tracked")
    (folder / "deleted.py").touch()
    (folder / "link.py").symlink_to("/nowhere/at/all")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    (folder / "deleted.py").unlink()
    (folder / "new.py").touch()
    (folder / "noise.log").touch()
    return folder


def unpacked(folder: Path, tmp_path: Path, *command: str) -> tuple[int | None, Path]:
    count = project.pack(folder, tmp_path / "job.tar.gz", "job", command)
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "xzf", "job.tar.gz", "-C", "unpacked"], cwd=tmp_path, check=True)
    return count, tmp_path / "unpacked"


def test_the_archive_has_the_project_and_systolic(repository: Path, tmp_path: Path) -> None:
    count, target = unpacked(repository, tmp_path, "chips", "--json", "it's.json")
    assert count == 4
    names = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file() or path.is_symlink()}
    metadata = f"package/systolic-{systolic.__version__}.dist-info/METADATA"
    assert names == {
        *("files/.gitignore", "files/link.py", "files/new.py", "files/sub dir/größe.py", "run.sh", metadata),
        *("package/systolic/__init__.py", "package/systolic/part/numbers.json"),
    }
    script = (target / "run.sh").read_text()
    assert "-m systolic chips --json 'it'\"'\"'s.json')" in script
    # The versions that are installed here; systolic itself comes from no index.
    (install,) = [shlex.split(line) for line in script.splitlines() if "pip install --quiet --python" in line]
    assert "click==" in " ".join(install)
    assert any(word.startswith("jax[tpu]==") for word in install)
    assert not any(word.startswith(("systolic", "pytest")) for word in install)


def test_a_folder_of_a_project_goes_without_the_rest(repository: Path, tmp_path: Path) -> None:
    count, target = unpacked(repository / "sub dir", tmp_path, "chips")
    assert count == 1
    assert [path.name for path in (target / "files").iterdir()] == ["größe.py"]


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\0")), min_size=1))
def test_the_far_sides_shell_reads_the_words_that_were_meant(words: list[str]) -> None:
    script = project._SCRIPT.format(
        job="job", busy=1, not_installed=2, python="3.11", requirements="x", command=shlex.join(words)
    )
    line = script[script.index("(cd files") : script.index(")\necho $?")]
    assert shlex.split(line.split("-m systolic ", 1)[1]) == words


def test_a_project_that_cannot_be_copied_is_one_line(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> None:
        raise PackageNotFoundError(name)

    with monkeypatch.context() as patch:
        patch.setattr(project, "distribution", unknown)
        with pytest.raises(TpuCallError, match="never installed"):
            project.pack(repository, tmp_path / "x", "job", ["chips"])
    (tmp_path / "git").write_text("#!/bin/sh\necho 'fatal: detected dubious\nownership' >&2\nexit 128\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TpuCallError, match="dubious ownership"):
        project.pack(repository, tmp_path / "x", "job", ["chips"])
    (tmp_path / "git").unlink()
    assert project.pack(repository, tmp_path / "x", "job", ["chips"]) is None


# --- answers of gcloud -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["Updates are available", "5", "[]", "{}", "[" * 2000, '{"state": 5}', '{"state": "\\u001b[2J"}', "\ud800"],
)
def test_an_answer_that_is_no_machine_is_one_line(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(gcloud, "call", lambda *_: text)
    with pytest.raises(MachineError, match="which is not a machine") as caught:
        gcloud.state(WHERE)
    assert str(caught.value).isprintable()


def test_the_state_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"state": "READY", "networkEndpoints": [{}, {}], "name": "projects/mine/nodes/my-tpu"}
    monkeypatch.setattr(gcloud, "call", lambda *_: json.dumps(answer))
    assert gcloud.state(WHERE) == ("READY", 2)


def test_a_python_that_cannot_unpack_safely_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("exit_code"))
    monkeypatch.delattr(tarfile, "data_filter")  # as before 3.11.4
    with pytest.raises(MachineError, match="data_filter"):
        jobs.unpack(tmp_path / "a.tar.gz", tmp_path)
