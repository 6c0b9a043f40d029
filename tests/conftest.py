import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Winners that somebody has tuned on this machine shall not change what tests see; commands in subprocesses inherit it.
_STORE = tempfile.TemporaryDirectory(prefix="systolic-store-")
os.environ["SYSTOLIC_STORE"] = f"{_STORE.name}/trials.sqlite"

# Some tests trace as for a chip, which loads the compiler into their own process: beside other tests' it may.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C is heard: whoever runs the tests may ignore it, as a shell does for what it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="module")
def _quickly_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    # Programs for the CPU run once or twice, those of interpret mode too: optimising them takes half of the time.
    if request.path.relative_to(Path(__file__).parent).parts[0] not in ("unit", "interpret"):
        yield
        return
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


# Hypothesis' limit of 200 ms an example is one by the clock: a busy machine misses it.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")
