"""How Sphinx builds the site: `make docs`."""

import os
import sys
from pathlib import Path

os.environ["TENSORNET_CALIBRATE"] = "0"  # pages print the times of the built-in constants
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "gallery"))

import tensornet  # noqa: E402

project = "tensornet"
author = copyright = "the tensornet authors"
version = release = tensornet.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_build", "results", "gallery"]
html_theme = "furo"
html_title = "tensornet"
html_static_path = ["_static"]
html_css_files = ["layers.css"]
default_role = "code"
myst_heading_anchors = 3
nitpicky = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "layers",
    "filename_pattern": r"plot_",
    "ignore_pattern": r"against",
    "capture_repr": ("_repr_html_",),
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "show_memory": False,
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
}


def as_rest(app, what, name, obj, options, lines):
    """Docstrings have tables and arguments as Markdown does; Sphinx reads reStructuredText."""
    found = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|"):
            found.append(line.replace(", **sizes", r", \*\*sizes"))
        elif not found[-1].startswith("   "):
            found += [".. list-table::", "   :header-rows: 1", ""]
        if line.lstrip().startswith("|") and set(cells) != {"---"}:
            found += [f"   {'*' if at == 0 else ' '} - {cell}" for at, cell in enumerate(cells)]
    lines[:] = found


def setup(app):
    app.connect("autodoc-process-docstring", as_rest, priority=400)  # before napoleon
