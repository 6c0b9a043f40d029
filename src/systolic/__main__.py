"""`python -m systolic` is the `systolic` command."""

import sys

from systolic.cli import main

sys.exit(main())
