"""A layer of experts on a ring of devices: all tokens go to every device, and sums of experts' rows go back."""
