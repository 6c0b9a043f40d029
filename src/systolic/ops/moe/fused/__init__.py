"""A layer of experts on one device without sorted copies of rows: tokens and their sums are in VMEM."""
