"""Why a function takes the time it takes, and what would change it: by simulating each change.

    explanation = systolic.explain(fn, lhs, rhs, chip="v6e")
    explanation.verdict, explanation.savings

`function_analysis` reads the traced function, `what_if` changes it and simulates, `explanation` holds what comes of it,
and `systolic.report` draws that. Other rooms import from here only.
"""

from systolic.explaining.explain import explain, explain_with_pool
from systolic.explaining.explanation import Communication, Explanation, ExplanationError, Program, Saving, Window
from systolic.explaining.function_analysis import FunctionAnalysis, analyse_function
from systolic.explaining.parts import LineTime, OperandTraffic, Region, VmemMap, VmemPart
from systolic.explaining.request import ExplainRequest
from systolic.explaining.resizing import records_with, with_fields
from systolic.explaining.timeline_windows import timeline_windows
