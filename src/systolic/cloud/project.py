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
from systolic.cloud.errors import ProjectError
from systolic.cloud.wheel import Wheel, running_wheel
from systolic.compiler import versions

# What is pinned where no constraints.txt goes along: measured times are compared with those simulated here.
_SAME_THERE = ("jax", "libtpu")


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
      package: systolic itself: the checkout that it runs from, or a wheel of what is installed here.
      inside: the folder within `work` to run the command in.
    """

    work: Checkout | None
    package: Checkout | Wheel
    inside: str

    @property
    def copied(self) -> tuple[Checkout, ...]:
        """The checkouts whose files go along, each once."""
        return tuple(checkout for _, checkout in self._parts())

    @property
    def pins(self) -> tuple[str, ...]:
        """What is installed beside a wheel, whose requirements allow many versions."""
        here = versions()
        pinned = (f"{name}=={here[name]}" for name in _SAME_THERE if here[name] is not None)
        return tuple(pinned) if isinstance(self.package, Wheel) else ()

    def write(self, folder: Path, job: str, command: Sequence[str]) -> tuple[str, str]:
        """Writes what a job takes; returns the names of the two files: the program and the archive."""
        program, archive = f"systolic-{job}.py", f"systolic-{job}.tar.gz"
        text = resources.files(str(__package__)).joinpath("remote.py").read_text(encoding="utf-8")
        (folder / program).write_text(text, encoding="utf-8")
        with tarfile.open(folder / archive, "w:gz") as packed:
            for prefix, checkout in self._parts():
                for name in checkout.files:
                    packed.add(checkout.root / name, f"{prefix}/{name}", recursive=False)
            made = {"job.json": json.dumps(self._spec(command)).encode()}
            if isinstance(self.package, Wheel):
                made[self.package.name] = self.package.content
            for name, content in made.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                packed.addfile(entry, io.BytesIO(content))
        return program, archive

    def _spec(self, command: Sequence[str]) -> dict[str, object]:
        """What `remote.py` reads."""
        return {
            "command": list(command),
            "commit": self.work.commit if self.work else "",
            "tree": "package" if self._in_itself else "work",
            "inside": self.inside,
            "package": self.package.name if isinstance(self.package, Wheel) else "package",
            "pins": list(self.pins),
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        }

    def _parts(self) -> list[tuple[str, Checkout]]:
        parts = [("package", self.package)] if isinstance(self.package, Checkout) else []
        if self.work and not self._in_itself:
            parts.append(("work", self.work))
        return parts

    @property
    def _in_itself(self) -> bool:
        """Whether the command is run in systolic's own checkout, which then goes along once."""
        return self.work is not None and isinstance(self.package, Checkout) and self.work.root == self.package.root


def project(folder: Path) -> Project:
    """What a command that is run in `folder` takes along.

    Raises:
      ProjectError: git fails, or systolic is neither in a checkout nor installed.
    """
    work = checkout(folder)
    sources = Path(systolic.__file__).resolve().parents[2]
    package = checkout(sources) if (sources / "pyproject.toml").exists() else None
    if package is not None and package.root != sources:
        package = None
    inside = folder.resolve().relative_to(work.root).as_posix() if work else "."
    return Project(work=work, package=package or running_wheel(), inside=inside)


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
