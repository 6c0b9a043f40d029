"""Pictures and pages made from results."""

from systolic.report.plots import plot_rates

__all__ = ["plot_rates"]
