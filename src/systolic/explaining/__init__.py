"""Why a function takes the time it takes, and what would change it: by simulating each change.

    explanation = systolic.explain(fn, lhs, rhs, chip="v6e")
    explanation.verdict, explanation.savings

`study` reads the traced function, `trying` changes it and simulates, `explanation` is what comes of it, and
`systolic.report` draws that.
"""

from systolic.explaining.explain import Question, explain, explained
from systolic.explaining.explanation import Explanation, ExplanationError, Saving

__all__ = ["Explanation", "ExplanationError", "Question", "Saving", "explain", "explained"]
