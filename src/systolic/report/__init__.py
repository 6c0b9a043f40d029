"""Pictures and pages made from results."""

from systolic.report.plots import RatePoint, draw_rates, plot_rates
from systolic.report.trace import chrome_trace

__all__ = ["RatePoint", "chrome_trace", "draw_rates", "plot_rates"]
