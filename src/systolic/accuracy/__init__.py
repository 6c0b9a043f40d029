"""Errors of simulated times, from the comparison with published times."""
