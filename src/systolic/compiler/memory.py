"""Read the free memory of this machine, or of the container that this process runs in, and give freed memory back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# A large compilation takes 1 to 2 GiB. Workers get that much even where it is not free: the operating system then
# decides which process loses memory.
_MIN_FREE_BYTES = 2 * 2**30
_SHARE = 0.9  # the rest is the parent's


def bearable_bytes(workers: int, root: Path = Path("/")) -> int | None:
    """Return the memory that each of `workers` processes may use, at least 2 GiB, so that all of them fit.

    None if the file system at `root` does not state the free memory.
    """
    free = [*_free_on_machine(root), *_free_in_groups(root)]
    return max(_MIN_FREE_BYTES, int(min(free) * _SHARE) // workers) if free else None


def give_back_freed_memory() -> None:
    """Let the C library return the memory to the system that was freed in this process.

    Otherwise glibc keeps most of it, in the way of the simulation that follows: 1.4 of 2.1 GB after the compilation of
    a training step of Llama 3.1 8B on eight chips of v6e.
    """
    with suppress(OSError, AttributeError):  # another C library, or another system
        ctypes.CDLL(None).malloc_trim(0)


def _free_on_machine(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield the free bytes of each control group of this process: of version 2, or of version 1."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers == "":
                yield from _free_in(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
                yield from _free_in(root / "sys/fs/cgroup/memory", path, *names)


def _free_in(mounted: Path, path: str, limit_name: str, used_name: str) -> Iterator[int]:
    # A limit of any group above counts as well. In a container the path may be the host's, where nothing is mounted;
    # the container's own limit is then at the top.
    group = mounted / path.strip("/")
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # no such file, or no limit: "max"
            limit, used = (int((folder / name).read_text()) for name in (limit_name, used_name))
            yield max(0, limit - used + _reclaimable(folder))
        if folder == mounted:
            return


def _reclaimable(folder: Path) -> int:
    """Bytes of the page cache that count as used, and are given up when they are needed."""
    with suppress(OSError, ValueError):
        pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(value) for name, value in pairs if name in ("inactive_file", "active_file"))
    return 0
