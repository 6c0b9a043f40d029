import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from quick_compilation import compile_quickly, quick_flags
from selection import mark_exhaustive, register_profiles
from warm_workers import WarmWorkers

# Winners that somebody has tuned on this machine shall not change what tests see; commands in subprocesses inherit it.
_STORE = tempfile.TemporaryDirectory(prefix="systolic-store-")
os.environ["SYSTOLIC_STORE"] = f"{_STORE.name}/trials.sqlite"

# Some tests trace as for a chip, which loads the compiler into their own process: beside other tests' it may.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")


# Looking for garbage among the objects of JAX and of the programs that it traced takes a tenth of the time.
gc.freeze()
gc.set_threshold(10_000, 10, 10)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C is heard: whoever runs the tests may ignore it, as a shell does for what it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def _warm_workers() -> Iterator[WarmWorkers]:
    warm = WarmWorkers()
    yield warm
    warm.end()


@pytest.fixture(autouse=True, scope="module")
def _workers_are_shared(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let compiler workers serve several tests, except in modules that bear the mark `fresh_workers`."""
    if _folder(request) not in ("compiled", "docs") or request.node.get_closest_marker("fresh_workers"):
        yield
        return
    with request.getfixturevalue("_warm_workers").shared():
        yield


@pytest.fixture(autouse=True, scope="module")
def _quickly_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    # Optimizing takes half of the time.
    if _folder(request) not in ("unit", "interpret"):
        yield
        return
    import jax
    import quick_interpretation  # noqa: F401 -- importing it is enough

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        if _folder(request) == "interpret":  # whose workers compile nothing for a TPU either
            patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
            patch.setenv("XLA_FLAGS", quick_flags())
        yield
    jax.config.update("jax_disable_most_optimizations", before)


def _folder(request: pytest.FixtureRequest) -> str:
    return request.path.relative_to(Path(__file__).parent).parts[0]


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Keep bytes out of the names of cases: those of gzip hold the time, and two workers would disagree on names."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)  # before cases are deselected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_exhaustive(items)


register_profiles()
compile_quickly()
