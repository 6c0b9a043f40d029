"""Matrix products: each op is one folder. Importing this package makes the ops of `registry.py` known."""

from systolic.ops import registry as registry
