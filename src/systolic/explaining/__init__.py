"""Why a kernel takes the time it takes, and what would change it."""
