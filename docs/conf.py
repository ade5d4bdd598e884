"""The site: `make docs` builds it from the pages of this folder and the packages' docstrings.

The pages stay readable as files: links between them are relative, and those that leave this folder
(CONTRIBUTING, CHANGELOG, ...) lead to pages here that include the file.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import django
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
os.environ.setdefault("DATABASE_URL", "sqlite://:memory:")
django.setup()

from from_code import pages  # noqa: E402

from tasks.monitoring import DOCS  # noqa: E402

project = "django-leasing"
author = "The django-leasing authors"
release = version = "0.1.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
]
root_doc = "index"
exclude_patterns = ["_build"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
# Languages of blocks that say how a test runs them, by those that Pygments knows.
highlight_language = "text"

# The names of types in signatures lead to what is public; those of private classes lead nowhere.
nitpick_ignore_regex = [("py:.*", ".*")]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}

intersphinx_mapping = (
    {}
    if not os.environ.get("READTHEDOCS")
    else {
        "python": ("https://docs.python.org/3", None),
        "django": (
            "https://docs.djangoproject.com/en/stable/",
            "https://docs.djangoproject.com/en/stable/_objects/",
        ),
    }
)
# A build without a network has links to neither, and is complete otherwise.
intersphinx_timeout = 5

html_theme = "furo"
html_title = "django-leasing"
html_static_path: list[str] = []
html_theme_options = {
    "source_repository": "https://github.com/django-leasing/django-leasing/",
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_exclude = ".linenos, .gp, .go"


def lead_here(app: Any, name: str, source: list[str]) -> None:
    """Turn links to files above this folder into links to the pages that include them."""
    source[0] = re.sub(
        r"\]\((?:\.\./)+(CONTRIBUTING|CHANGELOG|SECURITY)\.md", r"](/\1.md", source[0]
    )


def keep_tables(app: Any, kind: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Show the indented tables and examples of a docstring as they are written."""
    # An indented block that neither `::` nor the name of a section introduces.
    lines[:] = re.sub(
        r"^(?!\s*\w+:$)(\S.*(?<!::))\n+(?=    \S)",
        r"\1\n\n::\n\n",
        "\n".join(lines),
        flags=re.MULTILINE,
    ).split("\n")


def runbook_pages() -> list[Path]:
    """Return the pages that the package carries: the runbook, and the ids of the checks."""
    pages = [*(ROOT / "docs" / "runbook").glob("*.md"), ROOT / "docs" / "checks.md"]
    return sorted(pages, key=lambda page: page.stem)


def runbook_text(page: Path) -> str:
    """Return the text of a page of the runbook as the package carries it."""
    return re.sub(r"\n```{toctree}.*?```\n", "", page.read_text(), flags=re.DOTALL)


def runbook_html(name: str, text: str) -> str:
    """Return a page of the runbook as HTML for ``/ops/runbook/<name>/``. Its links lead to pages
    beside it, or to the published documentation."""
    up = "" if name == "index" else "../"
    carried = {page.stem for page in runbook_pages()}

    def target(found: re.Match[str]) -> str:
        path, page, anchor = found.groups()
        if path and page not in carried:
            return f"]({DOCS}/{page}/{anchor or ''})"
        return f"]({up}{page}/{anchor or ''})".replace("/index/", "/")

    linked = re.sub(r"\]\((\.\./)?([\w-]+)\.md(#[\w-]+)?\)", target, text)
    return str(MarkdownIt("commonmark").enable("table").render(linked))


def write_pages(app: Any) -> None:
    """Write the pages that come from the code."""
    for name, text in pages().items():
        (ROOT / "docs" / f"{name}.md").write_text(text)
    folder = ROOT / "tasks" / "monitoring" / "runbook"
    for page in runbook_pages():
        text = runbook_text(page)
        (folder / page.name).write_text(text)
        (folder / page.name).with_suffix(".html").write_text(runbook_html(page.stem, text))


def setup(app: Any) -> None:
    """Register what is done to each page and docstring."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", lead_here)
    app.connect("autodoc-process-docstring", keep_tables, priority=400)
