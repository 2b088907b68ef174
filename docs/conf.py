"""How Sphinx builds the documentation: `make docs`."""

from __future__ import annotations

import importlib
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.writers.html5 import HTML5Translator

import sparsegen

PLACES = (
    "sparsegen",
    "sparsegen.torch",
    "sparsegen.torch.distributed",
    "sparsegen.jax",
    "sparsegen.sklearn",
    "sparsegen.transformers",
    "sparsegen.properties",
)

project = "sparsegen"
author = "The sparsegen authors"
project_copyright = author
version = release = sparsegen.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_templates"]
suppress_warnings = ["config.cache"]  # sphinx-gallery adds a setting that cannot be stored between builds

# Pages in Markdown, with the anchors that GitHub gives headings.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# The reference: every name of `__all__`, a page each.
autosummary_generate = True
autosummary_imported_members = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # numpydoc's sections have them in words
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False


def page_names() -> dict[str, str]:
    """Pages of classes whose names differ from a function's in case alone get a name of their own.

    A file system may take `Sparsemax.html` and `sparsemax.html` for one file.
    """
    found = {}
    for place in PLACES:
        names = getattr(importlib.import_module(place), "__all__", ())
        lower = {name for name in names if name == name.lower()}
        found.update({f"{place}.{n}": f"{place}.{n}-class" for n in names if n not in lower and n.lower() in lower})
    return found


autosummary_filename_map = page_names()

# Examples, run when the site is built.
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"(?:^|/)(?!plot_)[^/]*\.py$",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 3600,  # no timings of the machine that built
    "write_computation_times": False,
    "within_subsection_order": "FileNameSortKey",
}

html_theme = "pydata_sphinx_theme"
html_title = f"sparsegen {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_extra_path = ["explore.html"]
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # summaries are fetched, which a page opened from a folder may not do
html_theme_options: dict[str, Any] = {
    "logo": {"text": "sparsegen"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "play": [], "gallery/**": []}
html_context = {"default_mode": "auto"}
html_math_renderer = "mathml"


def formula(self: Any, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers draw without a script or a network."""
    block = isinstance(node, nodes.math_block)
    start, end = ('<div class="math" tabindex="0">', "</div>") if block else ('<span class="math">', "</span>")
    self.body.append(start + latex2mathml.tex2mathml(node.astext(), as_block=block) + end)
    raise nodes.SkipNode


def begin_cell(self: Any, node: nodes.entry) -> None:
    """Begin a cell of a table; a heading without words, as in a corner, is a plain cell."""
    HTML5Translator.visit_entry(self, node)
    if isinstance(node.parent.parent, nodes.thead) and not node.astext():
        self.body[-1] = self.body[-1].replace("<th", "<td", 1)
        self.context[-1] = self.context[-1].replace("</th", "</td", 1)


def setup(app: Any) -> dict[str, bool]:
    """Register how formulas and tables are written."""
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.add_node(nodes.entry, override=True, html=(begin_cell, HTML5Translator.depart_entry))
    return {"parallel_read_safe": True}
