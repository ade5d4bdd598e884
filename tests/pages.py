"""Readers of HTML pages for tests: by roles and data, so that pages can be reworded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.elements import Element, parse

#: The labels of both packages.
APPS = ("leasing", "leasing_tasks")
#: The tones of the messages of Django's admin.
ADMIN_TONES = {"success": "ok", "warning": "warn", "error": "crit"}


def admins() -> dict[type[Model], Any]:
    """Return the lists of both packages in the admin, by their models."""
    models = (model for label in APPS for model in apps.get_app_config(label).get_models())
    registered = filter(admin.site.is_registered, models)
    return {model: admin.site.get_model_admin(model) for model in registered}


class Notice(NamedTuple):
    """A message about the outcome of an action."""

    tone: str
    text: str
    numbers: list[float]


class Row(dict[str, str]):
    """A row of a table: the text of its cells by column, or by field in the admin."""

    def __init__(self, element: Element) -> None:
        self.element = element
        super().__init__({_column(cell): cell.text for cell in self._cells})
        self.key = element.get("data-key")
        self.links = element.links
        self.badges = _badges(element)

    def cell(self, column: str) -> Element:
        """The cell of ``column``."""
        return next(cell for cell in self._cells if _column(cell) == column)

    @property
    def _cells(self) -> list[Element]:
        return self.element.all("th") + self.element.all("td")


def _column(cell: Element) -> str:
    fields = (each.removeprefix("field-") for each in cell.classes if each.startswith("field-"))
    return cell.get("data-label") or next(fields, "")


def _badges(element: Element) -> list[str]:
    """The words of the badges in ``element``, without the marks that stand for icons."""
    return [each.text for each in element.all("span.badge")] + [
        each.text.removeprefix(each.one("[aria-hidden=true]").text).strip()
        for each in element.all("span.leasing-badge")
    ]


class Page:
    """A page: its elements, and readings of them."""

    def __init__(self, response: Any) -> None:
        self.status = response.status_code
        self.html: str = response.content.decode()

    @cached_property
    def tree(self) -> Element:
        """Its elements."""
        return parse(self.html)

    def all(self, selector: str) -> list[Element]:
        """The elements that fit ``selector``, as in CSS."""
        return self.tree.all(selector)

    def one(self, selector: str) -> Element:
        """The only element that fits ``selector``."""
        return self.tree.one(selector)

    # Words

    @property
    def text(self) -> str:
        """The words of the page, separated by single spaces."""
        return self.tree.text

    @property
    def names(self) -> list[str]:
        """The names of the rows of its tables, each a link to the row's page."""
        return [link.text for link in self.all("td.name a")]

    @property
    def badges(self) -> list[str]:
        """The words of the badges that it shows."""
        return _badges(self.tree)

    @property
    def notices(self) -> list[Notice]:
        """The messages about the outcome of actions."""
        own = [(each.tone, each) for each in self.all(".notices[role=status] .notice")]
        admins = [(ADMIN_TONES[each.get("class")], each) for each in self.all(".messagelist li")]
        return [Notice(tone, each.text, each.numbers) for tone, each in own + admins]

    @property
    def notice(self) -> Notice:
        """The only message about the outcome of an action."""
        (notice,) = self.notices
        return notice

    @property
    def alerts(self) -> list[str]:
        """The errors in the request, as an alert each."""
        return [each.text for each in self.all("[role=alert]")]

    @property
    def invalid(self) -> set[str]:
        """The names of the form fields marked invalid."""
        return {each["name"] for each in self.all("[aria-invalid=true]")}

    @property
    def is_empty(self) -> bool:
        """Return True if one of its lists is shown as empty."""
        return bool(self.all("p.empty"))

    # Data

    @property
    def rows(self) -> list[Row]:
        """The rows of its lists."""
        own, admins = self.all("table.rows tbody tr"), self.all("#result_list tbody tr")
        return [Row(each) for each in own + admins]

    def row(self, key: str) -> Row:
        """The row of its lists with the ``data-key``."""
        return next(row for row in self.rows if row.key == key)

    @property
    def facts(self) -> dict[str, str]:
        """Its definition lists: values by their terms."""
        pairs = (each for each in self.all("dl div") if each.all("dt"))
        return {each.one("dt").text: each.one("dd").text for each in pairs}

    @property
    def fields(self) -> dict[str, str]:
        """The read-only fields of a form of the admin, by name."""
        return {
            each.removeprefix("field-"): box.one("div.readonly").text
            for box in self.all("div.fieldBox") + self.all("div.form-row")
            for each in box.classes
            if each.startswith("field-") and len(box.all("div.readonly")) == 1
        }

    @property
    def code(self) -> str:
        """The code of the diagnosis that it shows."""
        return self.one("main [data-code]")["data-code"]

    @property
    def answers(self) -> dict[str, Element]:
        """Its answers about the row, by question, in their order."""
        return {each["data-answer"]: each.one("dd") for each in self.all("[data-answer]")}

    @property
    def tabs(self) -> dict[str, str]:
        """The number of rows of each list, "" if not counted, by the query of its address:
        "state=failed", "renewed=1", or "" for all."""
        return {
            ",".join(
                f"{name}={query[name][0]}" for name in ("renewed", "state") if name in query
            ): "".join(each.text for each in tab.all(".count"))
            for tab in self.all("nav.tabs a.tab")
            for query in [parse_qs(urlsplit(tab["href"]).query)]
        }

    @property
    def next(self) -> str:
        """The address of the next page; "" on the last."""
        return self._relation("next")

    @property
    def previous(self) -> str:
        """The address of the page before; "" on the first."""
        return self._relation("prev")

    def _relation(self, rel: str) -> str:
        found = {each["href"]: None for each in self.all(f"a[rel={rel}]")}
        assert len(found) < 2, found
        return next(iter(found), "")

    @property
    def links(self) -> list[str]:
        """The addresses of its links."""
        return self.tree.links

    @property
    def forms(self) -> list[str]:
        """The addresses that its forms are sent to."""
        return [each.get("action") for each in self.all("form")]

    @property
    def hidden(self) -> dict[str, str]:
        """The hidden fields of its forms."""
        fields = self.all("input[type=hidden]")
        return {each["name"]: each.get("value") for each in fields}

    def choices(self, name: str) -> set[str]:
        """The values offered for ``name``, by buttons or in a list."""
        chosen = [*self.all(f"button[name={name}]"), *self.all(f"select[name={name}] option")]
        return {each.get("value") for each in chosen} - {""}

    @property
    def scripts(self) -> list[Element]:
        """Its scripts and styles, embedded ones too."""
        return self.all("script") + self.all("style")

    @property
    def handlers(self) -> list[str]:
        """Attributes that run scripts or set a style."""
        return [
            name
            for element in self.tree.inside()
            for name in element.attrs
            if name.startswith("on") or name == "style"
        ]

    def link_called(self, words: str) -> str:
        """The address behind the link that reads ``words``."""
        found = [each["href"] for each in self.all("a[href]") if each.text.startswith(words)]
        assert found, f"no link is called {words}: {self.text[:500]}"
        return found[0]


def get(client: Client, url: str, **headers: str) -> Page:
    """The page at ``url``."""
    return Page(client.get(url, headers=headers))


def user_with(*permissions: str, name: str = "alice", **fields: Any) -> User:
    """A user with ``permissions`` ("leasing.view_lease") and no others."""
    user = User.objects.create_user(name, password="x", **fields)
    user.user_permissions.add(*map(permission, permissions))
    return user


@cache
def permission(label: str) -> Permission:
    """The permission called "leasing.view_lease": written with the tables, and never changed."""
    app, codename = label.split(".")
    return Permission.objects.get(content_type__app_label=app, codename=codename)


def signed_in(*permissions: str, **fields: Any) -> Client:
    """A browser in which a user with ``permissions`` has signed in."""
    client = Client()
    client.force_login(user_with(*permissions, **fields))
    return client


@contextmanager
def queries() -> Iterator[Callable[[], list[str]]]:
    """The SQL that the block sends: a function that returns it."""
    with CaptureQueriesContext(connection) as captured:
        # Savepoints are there only because a test is a transaction.
        yield lambda: [
            query["sql"] for query in captured.captured_queries if "SAVEPOINT" not in query["sql"]
        ]


def sent_by(client: Client, url: str) -> list[str]:
    """The SQL of one visit at ``url``, which succeeds."""
    with queries() as sent:
        response = client.get(url)
    assert response.status_code == 200, response.status_code
    return sent()


def assert_cheap(statements: list[str]) -> None:
    """No page is found by OFFSET, and no count is without a bound."""
    for sql in statements:
        # The last of the thousand failures that an overview groups is found in an index.
        assert "OFFSET" not in sql.replace("LIMIT 1 OFFSET 999", ""), sql
        assert "COUNT(*)" not in sql or re.search(r"LIMIT 10?00[01]\b", sql), sql
