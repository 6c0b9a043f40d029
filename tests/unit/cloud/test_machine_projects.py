"""What goes to a machine and what comes back: the project's files, where systolic comes from, and results."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

import systolic
from systolic.cloud import ProjectError, remote
from systolic.cloud import wheel as wheel_module
from systolic.cloud.project import Project, check_paths, checkout, project


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=me", "-c", "user.email=me@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "a project"
    (folder / "sub dir").mkdir(parents=True)
    (folder / "sub dir" / "größe.py").write_text("committed")
    (folder / "deleted.py").touch()
    (folder / "link.py").symlink_to("/nowhere/at/all")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_a_checkout_is_what_git_tracks_as_it_is_now(repository: Path) -> None:
    found = checkout(repository / "sub dir")
    assert found is not None
    assert len(found.commit) == 40
    (repository / "deleted.py").unlink()
    (repository / "new.py").touch()
    (repository / "noise.log").touch()
    found = checkout(repository / "sub dir")
    assert found is not None
    assert found.root == repository
    assert set(found.files) == {".gitignore", "link.py", "sub dir/größe.py"}
    assert found.untracked == ("new.py",)
    assert found.commit.endswith("+")


def test_a_checkout_before_its_first_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "x.py").touch()
    git(tmp_path, "add", "x.py")
    found = checkout(tmp_path)
    assert found is not None
    assert (found.files, found.commit) == (("x.py",), "")


def written(made: Project, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    folder = tmp_path / "written"
    folder.mkdir()
    program, archive = made.write(folder, "7", ["chips", "--json", "it's.json"])
    assert (folder / program).read_text() == Path(remote.__file__).read_text()
    with tarfile.open(folder / archive) as packed:
        if hasattr(tarfile, "fully_trusted_filter"):  # from Python 3.11.4 on
            packed.extraction_filter = tarfile.fully_trusted_filter
        packed.extractall(folder / "there")
    return json.loads((folder / "there" / "job.json").read_text()), folder / "there"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package in place of systolic's, which then runs from no checkout."""
    package = tmp_path / "lib" / "systolic"
    (package / "part" / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("NAME = 'größe'\n", "utf-8")
    (package / "part" / "numbers.json").write_text("[1]")
    (package / "part" / "__pycache__" / "old.pyc").touch()
    monkeypatch.setattr(systolic, "__file__", str(package / "__init__.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return package


def test_outside_a_checkout_systolic_goes_along_as_it_is_installed(installed: Path, tmp_path: Path) -> None:
    spec, there = written(project(tmp_path), tmp_path)
    wheel = f"systolic-{systolic.__version__}-py3-none-any.whl"
    assert (spec["package"], spec["tree"], spec["command"]) == (wheel, "work", ["chips", "--json", "it's.json"])
    assert spec["pins"][0].startswith("jax==")
    assert remote.requirements(there, spec) == [
        *("--reinstall-package", "systolic", f"systolic[tpu,report] @ {(there / wheel).as_uri()}"),
        *spec["pins"],
    ]
    assert {path.name for path in there.iterdir()} == {"job.json", wheel}
    # pip takes it for a wheel, and what it installs is what was packed.
    target = tmp_path / "target"
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    command = [sys.executable, "-m", "pip", "install", *quiet, "--target", target, there / wheel]
    subprocess.run(command, check=True)
    for packed in (installed / "__init__.py", installed / "part" / "numbers.json"):
        assert (target / "systolic" / packed.relative_to(installed)).read_bytes() == packed.read_bytes()
    assert not list(target.rglob("old.pyc"))
    assert "systolic.cli:main" in (target / f"systolic-{systolic.__version__}.dist-info/entry_points.txt").read_text()


def test_a_systolic_that_was_never_installed_is_refused_before_a_machine_is_made(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(wheel_module, "distribution", unknown)
    with pytest.raises(ProjectError, match="never installed"):
        project(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(systolic, "__file__", str(tmp_path / "nowhere" / "systolic" / "__init__.py"))
    with pytest.raises(ProjectError, match="no folder of Python files"):
        project(tmp_path)


@pytest.mark.parametrize("same", [True, False])
def test_systolic_comes_from_its_own_checkout(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    sources = repository if same else tmp_path / "systolic"
    (sources / "src" / "systolic").mkdir(parents=True)
    (sources / "pyproject.toml").touch()
    (sources / "constraints.txt").touch()
    git(sources, "init", "--quiet")
    git(sources, "add", ".")
    monkeypatch.setattr(systolic, "__file__", str(sources / "src" / "systolic" / "__init__.py"))
    made = project(repository / "sub dir")
    spec, there = written(made, tmp_path)
    assert (spec["package"], spec["pins"]) == ("package", [])
    assert (spec["tree"], spec["inside"]) == ("package" if same else "work", "sub dir")
    assert (there / spec["tree"] / spec["inside"] / "größe.py").read_text() == "committed"
    assert (there / "package" / "pyproject.toml").exists()
    assert (there / "work").exists() != same
    assert remote.requirements(there, spec) == [
        *("--constraint", str(there / "package" / "constraints.txt")),
        *("--reinstall-package", "systolic", f"systolic[tpu,report] @ {(there / 'package').as_uri()}"),
    ]


def test_a_git_that_fails_is_a_project_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\necho 'fatal: detected dubious ownership' >&2\nexit 128\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProjectError, match="dubious ownership"):
        checkout(tmp_path)
    (tmp_path / "git").unlink()
    assert checkout(tmp_path) is None


def test_paths_outside_the_project_are_refused() -> None:
    check_paths(["simulate", "sub/kernel.py:mine", "--arg", "bf16[8,128]", "--json=results/x.json", "--json", "-"])
    for path in ("/abs.json", "~/x.json", "../x.json", "--json=/abs.json"):
        with pytest.raises(ProjectError, match="name a file of the project"):
            check_paths(["bench", path])
