"""The notebook of `examples/`: every cell runs, and shows what is stored in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def shown(notebook: Any) -> list[str]:
    """Return each cell's output as text, without the numbers of times, which depend on the compiler's version."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output["text"] if output.output_type == "stream" else output["data"]["text/plain"]
            if "times" in cell.metadata.get("tags", []):
                text = re.sub(r"[ \d.,%]+", " ", text)
            found.append(text)
    return found


# Warnings of Jupyter's own packages about each other, and about connections that are closed after the test.
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_and_shows_what_is_stored() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    assert shown(notebook) == shown(stored)
    assert len(shown(stored)) >= 4
    assert (
        sum("text/html" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])) == 3
    )
