"""The site of the documentation: `make docs` builds it, offline, from the pages as they stand in the repository.

The repository's root is the source folder, so that links between pages work on GitHub and in the site alike.
"""

from __future__ import annotations

import dataclasses
import os
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx import addnodes
from sphinx.application import Sphinx

import landscape

ROOT = Path(__file__).parents[1]
# `program-output` runs the command of this Python, in boxes that fit a page.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ["COLUMNS"] = "90"
os.environ.pop("FORCE_COLOR", None)

project = html_title = "landscape"
author = copyright = "The authors of landscape"
version = release = landscape.__version__
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "studies/PROTOCOL.md",
    "reports/reference/**.md",
]
exclude_patterns = [".*", "checkpoints", "docs/_build", "docs/performance/*"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinxcontrib.programoutput"]
suppress_warnings = ["toc.not_included"]

# Notebooks are executed each time, in empty folders; an exception or a word on stderr fails the build.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_output_stderr = "warn"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_math_renderer = "mathml"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
pygments_style = "friendly"
# Flags keep their dashes, and code in docstrings its quotes.
smartquotes = False
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

THEORY = "docs/theory"
SECTIONS = ("Args:", "Returns:", "Raises:", "Attributes:")
ITEM = re.compile(r"(?:(?<=\n\n)|(?<=\.) |; )((?!empty)[a-z][\w\\]*(?: \([^()]*\))?(?:, [a-z][\w\\]*)*): ")
"""`rtol: ` or `values, vectors: ` at a sentence's start in a docstring, after the escapes."""


def plain_docstring(app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with sections; `x` is code, and `name: text` at a sentence's start is an item."""
    paragraphs = "\n".join(lines).strip().split("\n\n")
    text = "\n\n".join(map(section, paragraphs))
    if dataclasses.is_dataclass(item):
        helps = [(field.name, field.metadata["help"]) for field in dataclasses.fields(item) if "help" in field.metadata]
        text += "".join(f"\n\n* **{escaped(name)}**: {escaped(help)}" for name, help in helps)
    lines[:] = text.splitlines()


def section(paragraph: str) -> str:
    """A paragraph of a docstring, or its arguments, what it returns or what it raises, as reStructuredText."""
    head, _, body = paragraph.partition("\n")
    if head not in SECTIONS:
        text = ITEM.sub(r"\n\n* **\1**: ", "\n\n" + escaped(" ".join(paragraph.split())))
        return re.sub(r"(?<=\. )Raises ", r"\n\nRaises ", text).strip()
    entries = [escaped(" ".join(entry.split())) for entry in re.split(r"\n(?=    \S)", "\n" + body) if entry.strip()]
    if head != "Returns:":
        entries = [re.sub(r"^([\w\\, ]+): ", r"* **\1**: ", entry) for entry in entries]
    return "\n\n".join([f"**{head[:-1]}**", *entries])


def escaped(text: str) -> str:
    """Plain text as reStructuredText."""
    text = re.sub(r"([\\*|_])", r"\\\1", text)
    return re.sub(r"`([^`]+)`", lambda code: f"``{code[1].replace(chr(92), '')}``", text)


def print_fields(app: Sphinx, docname: str, source: list[str]) -> None:
    """The tables of docs/fields.md are made from the schemas of the files."""
    if docname == "docs/fields":
        source[0] = runpy.run_path(str(Path(__file__).with_name("make_fields.py")))["generate"](source[0])


def link_facts(app: Sphinx, doctree: nodes.document) -> None:
    """F14, wherever a page or a docstring names it, leads to that fact of the theory."""
    page = app.env.docname
    if page == THEORY:
        return
    for text in list(doctree.findall(nodes.Text)):
        inside = text.parent
        if isinstance(inside, nodes.literal | nodes.literal_block | nodes.reference | nodes.title):
            continue
        parts = re.split(r"\b(F\d{1,2}b?)\b", text.astext())
        if len(parts) > 1:
            place = app.builder.get_relative_uri(page, THEORY)
            links = [
                nodes.reference("", part, refuri=f"{place}#{part.lower()}") if odd % 2 else nodes.Text(part)
                for odd, part in enumerate(parts)
            ]
            inside.replace(text, links)


def link_files(app: Sphinx, doctree: nodes.document) -> None:
    """Links to files that are no pages stay as they are: the site holds these files in the same places."""
    for download in list(doctree.findall(addnodes.download_reference)):
        link = nodes.reference("", "", *download.children, refuri=download["reftarget"])
        download.replace_self(link)


def copy_files(app: Sphinx, error: Exception | None) -> None:
    """What pages link to beside pages: the page of the trial with its tables and figures, and what that links to."""
    pages = shutil.ignore_patterns("article.html", "*.md")  # of which the site has its own
    shutil.copytree(ROOT / "reports/reference", app.outdir / "reports/reference", ignore=pages, dirs_exist_ok=True)
    shutil.copy(ROOT / "studies/PROTOCOL.md", app.outdir / "studies")
    (app.outdir / "index.html").write_text('<meta http-equiv="refresh" content="0; url=docs/index.html">')


def mathml(translator: Any, node: Any) -> None:
    """Formulas as MathML, which browsers draw themselves: no script, no font, no other host."""
    block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=block)
    formula = re.sub(r"(<mo[^>]*)>([‖|])<", r'\1 stretchy="false">\2<', formula)
    translator.body.append(f'<div class="math">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.connect("autodoc-process-docstring", plain_docstring)
    app.connect("source-read", print_fields)
    app.connect("doctree-read", link_files, priority=100)  # before Sphinx collects what to copy
    app.connect("doctree-read", link_facts)
    app.connect("build-finished", copy_files)
