"""Sphinx settings."""

import pathlib
import shutil

import dpconformal

# Notebooks stand beside the docs, with their outputs; Sphinx reads what is below its own folder only.
here = pathlib.Path(__file__).parent
shutil.rmtree(here / "notebooks", ignore_errors=True)
(here / "notebooks").mkdir()
for notebook in (here.parent / "notebooks").glob("*.ipynb"):
    (here / "notebooks" / notebook.name).write_text(notebook.read_text().replace("](../docs/", "](../"))

project = "dpconformal"
author = "the dpconformal authors"
project_copyright = author
release = version = dpconformal.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the tests run them
exclude_patterns = ["_build"]
templates_path = ["_templates"]
html_theme = "furo"
html_title = "dpconformal"
html_static_path = ["_static"]
html_css_files = ["tables.css"]

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections say them better
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False


def skip_tuple_fields(app, what, name, obj, skip, options):
    """The fields of a NamedTuple stand in its docstring; "Alias for field number 0" adds nothing."""
    return skip or type(obj).__name__ == "_tuplegetter"


def setup(app):
    app.connect("autodoc-skip-member", skip_tuple_fields)
