"""Errors of simulated times, as the comparison with published times has shown them."""
