"""A layer of experts on several devices: each row of a token goes to the device of its expert, and its result back."""
