"""Files for those who are on call: ``alerts.yml`` for Prometheus,
``dashboard.json`` for Grafana, and the runbook, a page for each alert.

The pages of the runbook are written in ``docs/runbook``; ``make docs`` copies them into this
folder, as text and as HTML.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

#: The address under which the project publishes its documentation.
DOCS: Final = "https://django-leasing.readthedocs.io"
#: That of the runbook in it.
RUNBOOK: Final = f"{DOCS}/runbook"


def alerts(runbook: str = RUNBOOK) -> str:
    """Return the rules, in YAML.

    Args:
        runbook: The address under which the alerts find the pages of the runbook: each page has its
            name and a slash after it, as below ``/ops/runbook`` of a site with the pages.
    """
    return _read("alerts.yml").replace("runbook_url: ", f"runbook_url: {runbook.rstrip('/')}/")


def dashboard() -> str:
    """Return the dashboard, in Grafana's JSON."""
    return _read("dashboard.json")


def runbook_names() -> list[str]:
    """Return the names of the runbook's pages; ``index`` lists them."""
    pages = (files(__package__) / "runbook").iterdir()
    return sorted(page.name.removesuffix(".md") for page in pages if page.name.endswith(".md"))


def runbook_page(name: str, form: str = "md") -> str:
    """Return a page of the runbook.

    Args:
        name: One of ``runbook_names()``, or the name of an alert, for its page.
        form: ``md`` for its text, ``html`` for a fragment in HTML.

    Raises LookupError for an unknown name.
    """
    if name not in runbook_names():
        _, _, rule = _read("alerts.yml").partition(f" alert: {name}\n")
        link = re.search(r"runbook_url: ([\w-]+)", rule)
        if not link:
            raise LookupError(name)
        name = link[1]
    return _read(f"runbook/{name}.{form}")


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
