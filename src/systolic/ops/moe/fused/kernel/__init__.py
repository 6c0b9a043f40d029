"""The kernels that find tokens in VMEM, and add up what experts return for them there."""
