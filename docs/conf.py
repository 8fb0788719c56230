"""Sphinx settings."""

import dpconformal

project = "dpconformal"
author = "the dpconformal authors"
release = version = dpconformal.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "dpconformal"

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections say them better
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False
