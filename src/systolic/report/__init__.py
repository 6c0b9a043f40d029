"""Pictures and pages made from results."""

from systolic.report.compared import ComparedRow, Comparison, compare_explanations, compare_runs
from systolic.report.page import explanation_page
from systolic.report.plots import RatePoint, draw_rates, plot_rates
from systolic.report.trace import chrome_trace

__all__ = [
    "ComparedRow",
    "Comparison",
    "RatePoint",
    "chrome_trace",
    "compare_explanations",
    "compare_runs",
    "draw_rates",
    "explanation_page",
    "plot_rates",
]
