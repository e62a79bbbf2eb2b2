"""How Sphinx builds the site: `make docs`."""

import os
import re
import sys
from pathlib import Path

os.environ["TENSORNET_CALIBRATE"] = "0"  # pages print the times of the built-in constants
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "gallery")]

import made  # noqa: E402
from sphinx.util.docutils import SphinxDirective  # noqa: E402

import tensornet  # noqa: E402

project = "tensornet"
author = copyright = "the tensornet authors"
version = release = tensornet.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery", "tutorials"]
html_theme = "furo"
smartquotes = False  # commands are copied
html_title = "tensornet"
html_show_search_summary = False  # pages opened as files cannot fetch one another
html_static_path = ["_static"]
html_css_files = ["layers.css"]
default_role = "code"
myst_heading_anchors = 3
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_param = False  # the text of `a, b:` is printed once
sphinx_gallery_conf = {
    "examples_dirs": ["tutorials", "gallery"],
    "gallery_dirs": ["lessons", "layers"],
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
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


NAMES = re.compile(r"(?<![`\w])`(tensornet\.(?:models\.|study\.)?\w+)`(?!`)")

PLURALS = re.compile(r"(`[^`]+`)(s\b)")

MARKS = re.compile(r"(?<![`\w*])(\*{1,2}(?=\w)|\|)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)")


class Commands(SphinxDirective):
    """The options of the command line."""

    def run(self):
        return self.parse_text_to_nodes(made.commands(), allow_section_headings=True)


class Speed(SphinxDirective):
    """What was measured of a suite."""

    required_arguments = 1

    def run(self):
        return self.parse_text_to_nodes(made.measured(self.arguments[0]))


def as_rest(app, what, name, obj, options, lines):
    """Docstrings have tables, arguments and code as Markdown does; Sphinx reads reStructuredText."""
    found, in_example = [], False
    for at, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        if in_example:
            found.append(line)
        elif not line.lstrip().startswith("|"):
            marked = PLURALS.sub(r"\1\\ \2", MARKS.sub(r"\\\g<0>", line))
            found.append(NAMES.sub(r":py:obj:`\1`", marked))
            found[-1] += ":" if line.endswith(":") and _is_code(line, lines[at + 1 : at + 3]) else ""
        elif not found[-1].startswith("   "):
            found += [".. list-table::", "   :header-rows: 1", ""]
        if line.lstrip().startswith("|") and set(cells) != {"---"}:
            found += [f"   {'*' if number == 0 else ' '} - {cell}" for number, cell in enumerate(cells)]
    lines[:] = found


def _is_code(line, below):
    """Whether an indented block follows a line, behind an empty one."""
    deeper = " " * (len(line) - len(line.lstrip()) + 4)
    return len(below) == 2 and not below[0].strip() and below[1].startswith(deeper)


def listed_once(app, name, source):
    """A gallery's own page lists its pages, which the hidden list of sphinx-gallery would add to the sidebar again."""
    if name in [f"{folder}/index" for folder in sphinx_gallery_conf["gallery_dirs"]]:
        source[0] = source[0].rpartition(".. toctree::\n   :hidden:")[0]


def finish_downloads(app, error):
    """Downloads of the gallery bring the module that checks them."""
    for path in Path(app.outdir, "_downloads").rglob("plot_*.*"):
        made.add_check(path)


def setup(app):
    app.connect("build-finished", finish_downloads)
    app.connect("source-read", listed_once)
    app.connect("autodoc-process-docstring", as_rest, priority=400)  # before napoleon
    app.add_directive("commands", Commands)
    app.add_directive("speed", Speed)
