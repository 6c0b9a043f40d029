"""Names in the traces that JAX's profiler takes of TPUs, as XLA's `xplane_schema` has them."""

from __future__ import annotations

DEVICE_PLANE = "/device:TPU:"  # and the device's number
STEPS_LINE = "Steps"
MODULES_LINE = "XLA Modules"  # whole programs
OPS_LINE = "XLA Ops"
SPARSE_CORE_OPS_LINE = "Sparse Core Ops"
DEVICE_TYPE = "device_type_string"  # stat of a plane: "TPU v6 Lite"
CATEGORY = "hlo_category"  # stat of an operation
PROVENANCE = "provenance"  # stat of a plane that only `systolic` writes
