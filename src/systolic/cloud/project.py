"""The project as it goes to a machine: what git tracks here, and the systolic that runs here."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import systolic
from systolic.call_errors import WrongCallError
from systolic.compiler import versions

# What is pinned with a systolic from the package index: measured times are compared with those simulated here.
_SAME_THERE = ("jax", "libtpu")


class ProjectError(WrongCallError, ValueError):
    """The project cannot be copied, or a command would not find on the machine what it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A checkout by git.

    Attributes:
      root: its top folder.
      files: that git tracks and that are there, from the root; with changes that are not committed.
      untracked: that git neither tracks nor ignores.
      commit: "" before the first one; with `+` where files differ from it.
    """

    root: Path
    files: tuple[str, ...]
    untracked: tuple[str, ...]
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What goes to a machine.

    Attributes:
      work: the checkout that the command is run in; None: an empty folder.
      package: the checkout of systolic itself; None: systolic comes from the package index.
      inside: the folder within `work` to run the command in.
    """

    work: Checkout | None
    package: Checkout | None
    inside: str

    @property
    def copied(self) -> tuple[Checkout, ...]:
        """The checkouts whose files go along, each once."""
        return tuple(checkout for _, checkout in self._parts())

    @property
    def requirements(self) -> tuple[str, ...]:
        """What is installed, where not from `package`."""
        here = versions()
        pinned = [f"{name}=={here[name]}" for name in _SAME_THERE if here[name] is not None]
        return () if self.package else (f"systolic[tpu]=={systolic.__version__}", *pinned)

    def write(self, folder: Path, job: str, command: Sequence[str]) -> tuple[str, str]:
        """Writes what a job takes; returns the names of the two files: the program and the archive."""
        program, archive = f"systolic-{job}.py", f"systolic-{job}.tar.gz"
        text = resources.files("systolic.cloud").joinpath("remote.py").read_text(encoding="utf-8")
        (folder / program).write_text(text, encoding="utf-8")
        with tarfile.open(folder / archive, "w:gz") as packed:
            for prefix, checkout in self._parts():
                for name in checkout.files:
                    packed.add(checkout.root / name, f"{prefix}/{name}", recursive=False)
            spec = json.dumps(self._spec(command)).encode()
            entry = tarfile.TarInfo("job.json")
            entry.size = len(spec)
            packed.addfile(entry, io.BytesIO(spec))
        return program, archive

    def _spec(self, command: Sequence[str]) -> dict[str, object]:
        """What `remote.py` reads."""
        same = self.work is not None and self.package is not None and self.work.root == self.package.root
        return {
            "command": list(command),
            "commit": self.work.commit if self.work else "",
            "tree": "package" if same else "work",
            "inside": self.inside,
            "sources": self.package is not None,
            "requirements": list(self.requirements),
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        }

    def _parts(self) -> list[tuple[str, Checkout]]:
        parts = [("package", self.package)] if self.package else []
        if self.work and not (self.package and self.work.root == self.package.root):
            parts.append(("work", self.work))
        return parts


def project(folder: Path) -> Project:
    """What a command that is run in `folder` takes along.

    Raises:
      ProjectError: git fails.
    """
    work = checkout(folder)
    sources = Path(systolic.__file__).resolve().parents[2]
    package = checkout(sources) if (sources / "pyproject.toml").exists() else None
    if package is not None and package.root != sources:
        package = None
    inside = folder.resolve().relative_to(work.root).as_posix() if work else "."
    return Project(work=work, package=package, inside=inside)


def checkout(folder: Path) -> Checkout | None:
    """The checkout that a folder is in; None: it is in none, or there is no git.

    Raises:
      ProjectError: git fails for another reason.
    """
    if shutil.which("git") is None:
        return None
    try:
        root = Path(_git(folder, "rev-parse", "--show-toplevel").strip()).resolve()
    except ProjectError as error:
        if "not a git repository" in str(error):
            return None
        raise
    tracked = [name for name in _git(root, "ls-files", "-z").split("\0") if name]
    files = tuple(name for name in tracked if (root / name).is_file() or (root / name).is_symlink())
    others = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    try:
        commit = _git(root, "rev-parse", "HEAD").strip() + ("+" if changed else "")
    except ProjectError:  # before the first commit
        commit = ""
    untracked = tuple(name for name in others.split("\0") if name)
    return Checkout(root=root, files=files, untracked=untracked, commit=commit)


def check_paths(command: Sequence[str]) -> None:
    """Whether all files that a command names can be the same on the machine.

    Raises:
      ProjectError: one is outside the project.
    """
    for word in command:
        # An argument with a path in its middle goes by: the command there says what it misses.
        path = word.split("=", 1)[1] if word.startswith("--") and "=" in word else word
        if path.startswith(("/", "~", "../")) or path == "..":
            raise ProjectError(
                f"{path} is not there on the machine, and nothing written to it would come back: name a file of the "
                "project, such as results.json"
            )


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, errors="surrogateescape", check=False
    )
    if done.returncode != 0:
        raise ProjectError(f"git {arguments[0]} failed in {folder}: {done.stderr.strip()}")
    return done.stdout
