import os
import tempfile

# Winners that somebody has tuned on this machine shall not change what tests see; commands in subprocesses inherit it.
_STORE = tempfile.TemporaryDirectory(prefix="systolic-store-")
os.environ["SYSTOLIC_STORE"] = f"{_STORE.name}/trials.sqlite"

# Some tests trace as for a chip, which loads the compiler into their own process: beside other tests' it may.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
