"""Pictures and pages made from results."""

from systolic.report.compared import (
    ComparedRow,
    Comparison,
    NotComparableError,
    compare,
    compare_explanations,
    compare_runs,
)
from systolic.report.page import explanation_page
from systolic.report.png import save_png
from systolic.report.rates_plot import RatePoint, rates_plot
from systolic.report.times_plot import TimePoint, times_plot
from systolic.report.trace import chrome_trace, spans_left_out
from systolic.report.xspace import xspace
