"""The command line. The only room that prints."""

from systolic.cli.main import main

__all__ = ["main"]
