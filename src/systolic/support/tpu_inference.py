"""Files of tpu-inference's kernels, which are raced where they are installed: `pip install --no-deps tpu-inference`.

They are loaded without the package around them, which needs vLLM, and sets flags of the compiler for the whole process.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import sys
import types
from typing import Any

PACKAGE = "tpu_inference"


def is_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


def version_of(generation: str) -> int:
    """Return a generation of TPUs, such as "v6e", as tpu-inference counts them."""
    match = re.search(r"\d+", generation)
    return int(match.group()) if match else -1


def kernel_module(name: str) -> Any:
    """Load a file below the package's `kernels`, such as "quantized_matmul.kernel", in this process.

    Raises:
      ModuleNotFoundError: the package is not installed, or has no such file.
    """
    if PACKAGE not in sys.modules:
        module_spec = importlib.util.find_spec(PACKAGE)
        if module_spec is None:
            raise ModuleNotFoundError(f"{PACKAGE} is not installed: python -m pip install --no-deps tpu-inference")
        package, logger = importlib.util.module_from_spec(module_spec), types.ModuleType(f"{PACKAGE}.logger")
        logger.__dict__["init_logger"] = _logger
        sys.modules |= {PACKAGE: package, logger.__name__: logger}
    return importlib.import_module(f"{PACKAGE}.kernels.{name}")


def _logger(name: str) -> logging.Logger:
    """Return a logger that also has vLLM's `warning_once`."""
    logger = logging.getLogger(name)
    logger.__dict__["warning_once"] = logger.warning
    return logger
