"""The corpus of hostile input: what no page, list of the admin or route may take or fail at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from leasing.web.cursors import Cursor

# In addresses and forms of pages

#: What PostgreSQL stores in no text, what has more than 63 bits, and text that is JSON.
WRONG_KEYS = ("a\0b", "9" * 19, '{"a":1}')
#: A moment whose offset PostgreSQL does not know, and one that is beyond the calendar elsewhere.
HOSTILE = (*WRONG_KEYS, "2020-01-01T00:00:00+23:59", "9999-12-31T23:59:59-14:00")
#: What a hidden field of the admin may come back as.
PICKED = (
    *('{"a": 1}', "[[1]]", "[1]", "null", "1", '[["\\u0000", 1]]', '[["1", 1e400]]', "[" * 9_000),
    *(f'[["{"9" * 19}", {"9" * 30}]]', '[["1", {"a": 1}]]', '[[{"a": 1}, 1]]', "9" * 5_000, ""),
)


def cursors(label: str, column: str = "") -> Iterator[str]:
    """Places in a list of that model, sorted by its key or by a moment, at which there is none."""
    moment = "2020-01-01T00:00:00Z" if column else ""
    for key in WRONG_KEYS:
        yield Cursor(label, "older", key, column, moment).encode()
    for hostile in HOSTILE if column else ():
        yield Cursor(label, "newer", "1", column, hostile).encode()


# In requests to the API

#: Texts that no field of any operation takes, in JSON.
NEVER = {
    "NUL": r'"a\u0000b"',
    "NUL as a key": r'{"\u0000": 1}',
    "NUL deep inside": r'[{"y": ["\u0000"]}]',
    "a lone surrogate": r'"\ud800"',
    "half a pair": r'"\udc00\ud83d"',
    "NaN": "NaN",
    "infinity": "-Infinity",
    "1e999": "1e999",
    "-1e999": "-1e999",
    "301 digits": "9" * 301,
    "5,000 digits": "9" * 5_000,
    "5,000 decimals": "0." + "1" * 5_000,
    "100 levels": "[" * 100 + "]" * 100,
    "20,000 levels": '{"a":' * 10_000 + "[" * 10_000,
    "a duplicate key": '{"a": 1, "a": 2}',
    "a single quote": "'a'",
    "a raw control character": '"a\x01b"',
    "no UTF-8": b'"\xff\xfe"'.decode("latin-1"),
}
#: Texts that a field of a type does not take.
WRONG: Mapping[str, tuple[str, ...]] = {
    "integer": ("true", '"1"', "1.5", "[]", "{}", "1" + "0" * 30, "-" + "9" * 200),
    "number": ("true", '"1"', "[]", "{}", "1" + "0" * 30, "-1e300"),
    "string": ("true", "1", "0", "1.5", "[]", '["me"]', "{}", '{"a": "b"}'),
    "boolean": ("1", '"true"', "[]"),
    "array": ("true", "1", '"a"', "{}", "[]", "[null]", "[1]"),
    "object": ("true", "1", '"a"', "[]"),
    "date-time": (
        *('"2026-01-31T12:00:00+24:00"', '"2026-01-31T12:00:00-99:99"', '"2026-01-31T12:00:00"'),
        *('"2026-02-30T12:00:00Z"', '"0000-01-01T00:00:00Z"', '"9999-12-31T23:59:59-23:00"'),
        *('"1769860800"', '"now"', "1769860800"),
    ),
}
LONG = json.dumps("a" * 10_000)
#: Values in an address, encoded.
IN_PATHS = (
    *("%00", "%ED%A0%80", "9" * 19, "9" * 5_000, "1_7", "%EF%BC%91", "-1", "task%3A", "order%3A1"),
    *("task%3A1e9", "task%3A%00", "%2E", "%7B%22a%22%3A1%7D"),
)
IN_QUERIES: Mapping[str, tuple[str, ...]] = {
    "limit": ("0", "-1", "1e9", "NaN", "true", "9" * 5_000, "%00", ""),
    "cursor": ("x", "%00", "%ED%A0%80", "a.b.c", "9" * 5_000),
    "status": ("%00", "READY", "1"),
    "queue": ("%00", "", "a" * 300),
    "name": ("%00", "", "a" * 300),
    "resource": ("%00", "", "a" * 300),
}
TYPES = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "BREW")
KEYS = ("1", "not-a-uuid", "0" * 5_000)

JSON = "application/json"
#: Operations of tasks that do not say so in their names.
OF_TASKS = {"report_progress", "store_checkpoint", "list_attempts"}
OF_QUEUES = {"pause_queue", "resume_queue"}
#: What the document has no words for: one of several fields is needed.
MORE: Mapping[str, dict[str, Any]] = {
    "reschedule_task": {"at_once": True},
    "enqueue_task": {"data": {"sleep_duration_seconds": 0}},
}


class Request(NamedTuple):
    """A request that is wrong in one way."""

    evil: str
    method: str
    path: str
    body: bytes | None
    content_type: str = JSON
    headers: Mapping[str, str] = {}


@dataclass
class Operation:
    """An operation of the document: ``path`` begins below /api, and ``body`` is one that is
    accepted."""

    name: str
    method: str
    pattern: str
    parameters: list[dict[str, Any]]
    schema: dict[str, Any]
    components: dict[str, Any]
    #: Values of path parameters and of fields, of rows that are there.
    given: dict[str, Any]

    def __post_init__(self) -> None:
        self.body = self._accepted(self.schema) if self.schema else None
        if self.body is not None:
            self.body |= MORE.get(self.name, {})
        demanded = [each for each in self.parameters if each.get("required")]
        asked = {name: self._value(name) for name in _named(demanded, "query")}
        self.path = self._at(self.pattern) + (f"?{urlencode(asked)}" if asked else "")

    @property
    def sent(self) -> bytes | None:
        return None if self.body is None else json.dumps(self.body).encode()

    def evils(self, *, refuses_unknown: bool) -> Iterator[Request]:
        """Make every request that is wrong."""
        for name in re.findall(r"{(\w+)}", self.pattern):
            for value in IN_PATHS:
                path = self._at(self.pattern.replace(f"{{{name}}}", value))
                yield Request(f"{value} in the path", self.method, path, self.sent)
        for name in _named(self.parameters, "query"):
            for value in IN_QUERIES.get(name, ()):
                path = f"{self.path.partition('?')[0]}?{name}={value}"
                yield Request(f"{name}={value}", self.method, path, self.sent)
        for key in KEYS if "Idempotency-Key" in _named(self.parameters, "header") else ():
            headers = {"Idempotency-Key": key}
            yield Request(f"key {key}", self.method, self.path, self.sent, JSON, headers)
        if self.body is not None:
            for what, raw in self._bodies(self.body, refuses_unknown):
                yield Request(what, self.method, self.path, raw)
            for kind in TYPES:
                yield Request(f"Content-Type {kind!r}", self.method, self.path, self.sent, kind)

    def _bodies(self, body: dict[str, Any], refuses_unknown: bool) -> Iterator[tuple[str, bytes]]:
        whole = json.dumps(body)
        for text in ("", " ", "null", "[]", "1", '"a"', "true", whole[:-1], whole[:-2]):
            yield f"the body {text[-20:]}", text.encode()
        for text in (whole + "x", whole * 2, f"[{whole}]", json.dumps(whole), whole[:-1] + ",}"):
            yield f"the body {text[-20:]}", text.encode()
        yield "a BOM", whole.encode("utf-8-sig")
        yield "UTF-16", whole.encode("utf-16")
        for place, schema in self._places(body):
            inner = _found(body, place)
            if refuses_unknown:
                yield "an unknown field", _put(body, (*place, "unknown"), "1")
            for what, text in NEVER.items():
                yield f"{what} beside", _put(body, (*place, "x"), text)
            for name, known in schema["properties"].items():
                at = (*place, name)
                for what, text in NEVER.items():
                    yield f"{what} in {name}", _put(body, at, text)
                for text in self._wrong(known, name in schema.get("required", ())):
                    yield f"{text[:40]} in {name}", _put(body, at, text)
                if name in inner:
                    twice = json.dumps(inner[name])
                    yield f"{name} twice", _put(body, at, f'{twice}, "{name}": {twice}')

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = schema
        if "$ref" in schema:
            found = self.components[schema["$ref"].rpartition("/")[2]]
        return found

    def _value(self, name: str) -> Any:
        kind = "lease"
        if self.name in OF_QUEUES:
            kind = "queue"
        elif "task" in self.name or self.name in OF_TASKS:
            kind = "task"
        return self.given.get(f"{kind}.{name}", self.given.get(name))

    def _at(self, pattern: str) -> str:
        return re.sub(r"{(\w+)}", lambda found: quote(str(self._value(found[1])), safe=""), pattern)

    def _accepted(self, schema: dict[str, Any]) -> dict[str, Any]:
        body = {}
        for name in schema.get("required", ()):
            known = self._resolved(schema["properties"][name])
            value = self._value(name)
            if known.get("type") == "array":
                value = [self._accepted(self._resolved(known["items"]))]
            elif value is None:
                value = known.get("examples", ["x"])[0]
            body[name] = value
        return body

    def _places(
        self, body: dict[str, Any]
    ) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
        yield (), self.schema
        for name, known in self.schema["properties"].items():
            items = self._resolved(known.get("items", {}))
            if "properties" in items and name in body:
                yield (name, 0), items

    def _wrong(self, known: dict[str, Any], is_required: bool) -> Iterator[str]:
        known = self._resolved(known)
        kinds = [self._resolved(each) for each in known.get("anyOf", [known])]
        types = {each.get("type") for each in kinds}
        if None in types or len(types - {"null"}) > 1:  # any JSON, or one of several types
            return
        if is_required and "null" not in types:
            yield "null"
        for each in kinds:
            yield from WRONG.get(each.get("type", ""), ())
            yield from WRONG.get(each.get("format", ""), ())
            if "maxLength" in each or "enum" in each:
                yield LONG
            if each.get("maxItems"):
                yield json.dumps([None] * (each["maxItems"] + 1))


def operations(document: dict[str, Any], given: dict[str, Any]) -> dict[str, Operation]:
    """Return the operations of the document, by name."""
    components = document["components"]["schemas"]
    found = {}
    for path, methods in document["paths"].items():
        for method, known in methods.items():
            content = known.get("requestBody", {}).get("content", {}).get(JSON, {})
            schema = content.get("schema", {})
            if "$ref" in schema:
                schema = components[schema["$ref"].rpartition("/")[2]]
            name = known["operationId"]
            parameters = known.get("parameters", [])
            found[name] = Operation(
                name, method.upper(), path, parameters, schema, components, given
            )
    return found


def _named(parameters: list[dict[str, Any]], place: str) -> list[str]:
    return [each["name"] for each in parameters if each["in"] == place]


def _found(body: Any, place: tuple[str | int, ...]) -> Any:
    for each in place:
        body = body[each]
    return body


def _put(body: dict[str, Any], place: tuple[str | int, ...], text: str) -> bytes:
    """Return the JSON of ``body`` with ``text`` in that place: any text at all."""
    copy = json.loads(json.dumps(body))
    *way, last = place
    _found(copy, tuple(way))[last] = "\x00here"
    raw = json.dumps(copy).replace(json.dumps("\x00here"), text)
    return raw.encode("latin-1") if "\xff" in text else raw.encode()
