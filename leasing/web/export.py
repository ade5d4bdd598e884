"""Lists as CSV and JSON, sent as they are read: chunks by key, never a whole table in memory.

A cell that a spreadsheet would take for a formula gets a quote before it. What is payload is
exported to those alone who may see it, and its secrets to nobody.
"""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.http import HttpRequest, StreamingHttpResponse

from leasing.web.masking import masked

#: Rows that are read at a time.
CHUNK: Final = 500
#: Characters that begin a formula, also in their full-width forms.
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
FORMATS: Final = {"csv": "text/csv", "json": "application/json"}


@dataclass(frozen=True)
class Column:
    """A column of an export."""

    name: str
    read: Callable[[Any], Any]
    #: The permission without which the export lacks the column; its contents are masked then.
    permission: str = ""


def plain(*names: str) -> list[Column]:
    """Columns that are attributes of the rows."""
    return [Column(name, attrgetter(name)) for name in names]


def secret(permission: str, *names: str) -> list[Column]:
    """Columns for those alone who have ``permission``."""
    return [Column(name, attrgetter(name), permission) for name in names]


def export(
    request: HttpRequest,
    rows: models.QuerySet[Any] | Iterable[Sequence[Any]],
    columns: Sequence[Column],
    form: str,
    name: str,
) -> StreamingHttpResponse:
    """Return ``rows`` as a file, as the user of ``request`` may see them. Raises ValueError for
    another form.

    Args:
        request: The request.
        rows: A queryset, which is read by its key, the newest first, or an iterable of chunks of
            rows, for lists in another order.
        columns: The columns of the file.
        form: "csv" or "json".
        name: The name of the file.
    """
    if form not in FORMATS:
        raise ValueError(f"There is no export format {form!r}.")
    allowed = [c for c in columns if not c.permission or request.user.has_perm(c.permission)]
    chunks = in_chunks(rows) if isinstance(rows, models.QuerySet) else rows
    parts = (_as_csv if form == "csv" else json_parts)(chunks, allowed)
    streamed = _from_thread(parts) if isinstance(request, ASGIRequest) else parts
    response = StreamingHttpResponse(streamed, content_type=f"{FORMATS[form]}; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.{form}"'
    response["Cache-Control"] = "no-store"
    response["X-Content-Type-Options"] = "nosniff"
    return response


def in_chunks(rows: models.QuerySet[Any], size: int = CHUNK) -> Iterator[list[Any]]:
    """All of ``rows``, the newest first. Those that come meanwhile are not among them, and none
    comes twice."""
    ordered = rows.order_by("-pk")
    chunk = list(ordered[:size])
    while chunk:
        yield chunk
        if len(chunk) < size:
            return
        chunk = list(ordered.filter(pk__lt=chunk[-1].pk)[:size])


def neutral(value: Any) -> str:
    """``value`` as the cell of a table that nothing takes for a formula."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False, cls=DjangoJSONEncoder)
    text = str(value)
    first = unicodedata.normalize("NFKC", text[:1])
    return f"'{text}" if first.startswith(FORMULA) else text


class _Lines:
    """A file that keeps nothing: what is written comes back from the writer."""

    def write(self, text: str) -> str:
        return text


def _as_csv(chunks: Iterable[Sequence[Any]], columns: Sequence[Column]) -> Iterator[str]:
    writer: Any = csv.writer(_Lines())
    yield writer.writerow([column.name for column in columns])
    for chunk in chunks:
        yield "".join(
            writer.writerow([neutral(value) for value in _values(row, columns)]) for row in chunk
        )


def json_parts(chunks: Iterable[Sequence[Any]], columns: Sequence[Column]) -> Iterator[str]:
    """The text of a JSON array of rows, as they are read."""
    names = [column.name for column in columns]
    yield "["
    between = "\n"
    for chunk in chunks:
        for row in chunk:
            record = dict(zip(names, _values(row, columns), strict=True))
            yield between + json.dumps(record, ensure_ascii=False, cls=_Encoder)
            between = ",\n"
    yield "\n]\n"


def _values(row: Any, columns: Sequence[Column]) -> list[Any]:
    return [masked(c.read(row)) if c.permission else c.read(row) for c in columns]


class _Encoder(DjangoJSONEncoder):
    def default(self, o: Any) -> Any:
        return o.total_seconds() if isinstance(o, timedelta) else super().default(o)


async def _from_thread(parts: Iterator[str]) -> AsyncIterator[str]:
    """``parts``, read where the database may be asked."""
    read = sync_to_async(lambda: next(parts, None))
    while (part := await read()) is not None:
        yield part
