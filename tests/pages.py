"""Reading HTML pages in tests, as somebody who looks at them would."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from html.parser import HTMLParser
from typing import Any

from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

VOID = {"meta", "link", "input", "br", "hr", "img", "wbr"}
#: Elements that do not part the words they stand between.
INLINE = {"a", "b", "bdi", "code", "span", "strong", "svg", "time", "use", "wbr"}


class Page(HTMLParser):
    """What a page shows: its words, its links, the addresses of its forms."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.status = response.status_code
        self.html = response.content.decode()
        self.links: list[str] = []
        self.forms: list[str] = []
        self.scripts: list[dict[str, str | None]] = []
        self.handlers: list[str] = []
        self.names: list[str] = []
        self._words: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in INLINE:
            self._words.append(" ")
        self.handlers += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
            if self._in_name():
                self.names.append("")
        if tag == "form":
            self.forms.append(given.get("action") or "")
        if tag in ("script", "style"):
            self.scripts.append({"tag": tag, **given})
        if tag not in VOID:
            self._open.append((tag, given))

    def handle_endtag(self, tag: str) -> None:
        if tag not in INLINE:
            self._words.append(" ")
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if any(tag in ("script", "style", "svg", "title") for tag, _ in self._open):
            return
        self._words.append(data)
        if self._in_name() and any(tag == "a" for tag, _ in self._open):
            self.names[-1] += data.strip()

    def _in_name(self) -> bool:
        cells = (given for tag, given in self._open if tag == "td")
        return any("name" in (given.get("class") or "").split() for given in cells)

    @property
    def text(self) -> str:
        """The words of the page, with single spaces between them."""
        return re.sub(r"\s+", " ", "".join(self._words)).strip()

    def link_called(self, words: str) -> str:
        """The address behind the link that reads ``words``."""
        pattern = (
            rf'<a[^>]*href="([^"]*)"[^>]*>(?:<svg[^>]*><use[^>]*></svg>)?\s*{re.escape(words)}'
        )
        found = re.search(pattern, self.html)
        assert found, f"no link is called {words}: {self.text[:500]}"
        return found[1].replace("&amp;", "&")


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
        assert "OFFSET" not in sql, sql
        assert "COUNT(*)" not in sql or re.search(r"LIMIT 1000[01]\b", sql), sql
