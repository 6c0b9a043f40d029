"""Pictures and pages made from results."""

from systolic.report.plots import RatePoint, draw_rates, plot_rates

__all__ = ["RatePoint", "draw_rates", "plot_rates"]
