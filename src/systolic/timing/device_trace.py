"""Find the files of a profile that `jax.profiler.trace` wrote, and read its programs on TPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from systolic.compiler import WorkerEnded, WorkerPool
from systolic.support.call_errors import WrongCallError
from systolic.timing.traced_modules import DeviceTrace, UnreadableTraceError, read_modules

SUFFIX = ".xplane.pb"
_SUFFIXES = (SUFFIX, f"{SUFFIX}.gz")
_RUNS_FOLDER = Path("plugins") / "profile"
_ADVICE = "record one with `with jax.profiler.trace(FOLDER): …` on a machine with a TPU"
_TIME_LIMIT_S = 600.0
_MAX_SHOWN = 5  # planes in a message


class TraceFileError(WrongCallError, ValueError):
    """A file or folder without a profile of a TPU; the message says what it contains and what to do."""


def is_trace(path: Path) -> bool:
    """True for a path that `read_trace` accepts: a folder, or a file with the profiler's suffix."""
    return path.is_dir() or path.name.endswith(_SUFFIXES)


def read_trace(path: Path) -> DeviceTrace:
    """Read a profile: a file NAME.xplane.pb, also with gzip, or the folder that was given to the profiler.

    If a folder has several runs, the newest is read, with all of its hosts.

    Raises:
      TraceFileError: there is none, it cannot be read, or it has no programs on TPUs.
    """
    hosts = []
    with WorkerPool(max_workers=1, time_limit_s=_TIME_LIMIT_S) as pool:
        for file in trace_files(path):
            try:
                hosts.append(pool.submit(read_modules, file, label=f"reading {file}").result())
            except OSError as error:
                raise TraceFileError(f"cannot read {file}: {error.strerror or error}") from error
            except UnreadableTraceError as error:
                raise TraceFileError(f"{file} is {error}; {_ADVICE}") from error
            except (WorkerEnded, MemoryError) as error:
                how = error.how if isinstance(error, WorkerEnded) else "out of memory"
                raise TraceFileError(
                    f"cannot read {file}: jaxlib's reader of profiles was {how}; "
                    "the file is damaged, or too large for this machine: trace fewer steps"
                ) from error
    trace = DeviceTrace(
        planes=tuple(plane for host in hosts for plane in host.planes),
        modules=tuple(module for host in hosts for module in host.modules),
    )
    if not trace.modules:
        raise TraceFileError(f"{path} has no programs on a TPU, only {_named(trace.planes)}: {_ADVICE}")
    return trace


def trace_files(path: Path) -> list[Path]:
    """Return the files of a profile's newest run, one for each host.

    Raises:
      TraceFileError: the folder has none.
    """
    if not path.is_dir():
        return [path]
    folders = [folder for folder in sorted((path / _RUNS_FOLDER).glob("*")) if folder.is_dir()]
    for folder in (path, *reversed(folders)):
        files = sorted(file for file in folder.iterdir() if file.name.endswith(_SUFFIXES))
        if files:
            return files
    raise TraceFileError(f"{path} has no *{SUFFIX}, nor has a run in {path / _RUNS_FOLDER}: {_ADVICE}")


def _named(planes: Sequence[str]) -> str:
    rest = f" and {len(planes) - _MAX_SHOWN} more" if len(planes) > _MAX_SHOWN else ""
    return (", ".join(planes[:_MAX_SHOWN]) or "no planes") + rest
