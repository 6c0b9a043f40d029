"""Rounds of a loop that all do the same are executed a few times, and the others are skipped."""
