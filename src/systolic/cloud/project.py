"""The archive that goes to a machine: the project, the systolic that runs here, and the script that runs there."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path

import systolic
from systolic.cloud.errors import TpuCallError
from systolic.support.printable import printable

# Exit codes of the script other than 0, which is: the command has ended, and its results are packed.
BUSY, NOT_INSTALLED = 76, 77

# The command holds the lock, however the connection ends. Results are the files that are newer than `began`.
_SCRIPT = """\
cd "$HOME/{job}" || exit 1
exec 9>../systolic.lock
flock --nonblock 9 || exit {busy}
PATH="$PATH:$HOME/systolic-uv/bin"
venv="$HOME/systolic-venv-{python}"
command -v uv >/dev/null || python3 -m pip install --quiet --target ../systolic-uv uv
[ -x "$venv/bin/python" ] || uv venv --quiet --python {python} "$venv"
uv pip install --quiet --python "$venv/bin/python" {requirements} || exit {not_installed}
export PYTHONPATH="$HOME/{job}/package" PYTHONDONTWRITEBYTECODE=1 SYSTOLIC_STORE="$HOME/systolic-trials.sqlite"
mkdir -p files
touch began
(cd files && exec "$venv/bin/python" -m systolic {command})
echo $? >exit_code
[ "$SYSTOLIC_STORE" -nt began ] && cp "$SYSTOLIC_STORE" trials.sqlite
(printf 'exit_code\\0'; find files trials.sqlite -newer began -type f -print0 2>/dev/null) |
  tar czf partial --hard-dereference --null -T - && mv partial results.tar.gz
"""


def pack(folder: Path, archive: Path, job: str, command: Sequence[str]) -> int | None:
    """Write the archive of a command that runs in a copy of a folder's files, which git tracks or does not ignore.

    Returns the number of these files; None outside of a checkout.
    """
    names = _project_files(folder)
    try:
        installed = distribution("systolic")
    except PackageNotFoundError as error:
        raise TpuCallError("systolic was never installed here, so it cannot be installed there: use pip") from error
    script = _SCRIPT.format(
        job=job,
        busy=BUSY,
        not_installed=NOT_INSTALLED,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        requirements=shlex.join(_requirements(installed)),
        command=shlex.join(command),
    )
    metadata = f"package/systolic-{installed.version}.dist-info/METADATA"
    package = Path(systolic.__file__).parent
    modules = [path for path in sorted(package.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    sent = [(folder / name, f"files/{name}") for name in names or ()]
    sent += [(path, f"package/systolic/{path.relative_to(package).as_posix()}") for path in modules]
    # All is older than the command's output, even if the machine's clock is slow.
    with tarfile.open(archive, "w:gz") as packed:
        for path, name in sent:
            try:
                packed.add(path, name, recursive=False, filter=lambda entry: entry.replace(mtime=0, deep=False))
            except OSError as error:
                raise TpuCallError(f"cannot copy {printable(str(path))}: {error.strerror}") from error
        for name, text in (("run.sh", script), (metadata, installed.read_text("METADATA") or "")):
            content = text.encode(errors="surrogateescape")
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    return None if names is None else len(names)


def _requirements(installed: Distribution) -> list[str]:
    """Return what systolic needs, in the versions of this machine: times there and here come from one compiler."""
    requirements = ["libtpu"]
    for requirement in installed.requires or []:
        text, _, marker = requirement.partition(";")
        if "extra" not in marker or re.search(r"extra == ['\"](tpu|report)['\"]", marker):
            requirements.append(text.strip())
    return [_pinned(requirement) for requirement in requirements]


def _pinned(requirement: str) -> str:
    name = re.split(r"[^\w.\[\],-]", requirement)[0]
    try:
        return f"{name}=={version(name.split('[')[0])}"
    except PackageNotFoundError:
        return requirement


def _project_files(folder: Path) -> list[str] | None:
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    except FileNotFoundError:
        return None
    if done.returncode != 0:
        if b"not a git repository" in done.stderr:
            return None
        raise TpuCallError(f"git ls-files failed: {printable(' '.join(os.fsdecode(done.stderr).split()))}")
    names = dict.fromkeys(os.fsdecode(done.stdout).split("\0"))
    return [name for name in names if (folder / name).is_file() or (folder / name).is_symlink()]
