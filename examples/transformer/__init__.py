"""A decoder-only language model in plain JAX, whose training and decoding steps can be predicted without a TPU.

    systolic step examples/transformer:train --param config=llama3.1-8b --chip v6e --topology 2x4 --mesh fsdp=8 \\
        --param batch=1 --param seq=2048

Read `config.py` first, then `layers.py` and `step.py`; `sharding.py` says which axis of the mesh cuts which dimension.
"""

from .config import Config
from .models import CONFIGS
from .serving import decode, prefill
from .step import train

__all__ = ["CONFIGS", "Config", "decode", "prefill", "train"]
