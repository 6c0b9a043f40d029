"""Sphinx: `make docs` writes build/docs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# The functions that the page of the interface shows are imported; nothing may look for a device then.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import systolic

project = "systolic"
author = "the systolic authors"
release = version = systolic.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "commands",
    "docstrings",
    "generated_pages",
]
exclude_patterns = ["_ext", "_static", "gallery", "numbers"]
highlight_language = "text"  # an indented block is a command, output or a formula
smartquotes_action = "qe"  # quotes and ellipses; two dashes are an option of a command
default_role = "code"  # docstrings write `name`

myst_heading_anchors = 3
html_theme = "furo"
html_title = "systolic"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_extra_path = ["generated/site"]
maximum_signature_line_length = 100
copybutton_selector = "div.command pre, div.highlight-python pre"
copybutton_exclude = ".gp, .go, .linenos"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_use_rtype = False
