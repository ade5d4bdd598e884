"""The corpus: calls that are wrong, each in one way, to every operation of the document.

Each must be refused with a 4xx in the one shape of errors, and leave nothing behind. What is sent
would be accepted but for the evil, which the last calls show.
"""

from __future__ import annotations

import http.client
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from tests.fuzz.site import Principal
from tests.web_servers import NEAR, Site

#: Texts that no field of any operation takes, in JSON.
NEVER = {
    "NUL": r'"a\u0000b"',
    "NUL as a key": r'{"\u0000": 1}',
    "a lone surrogate": r'"\ud800"',
    "half a pair": r'"\udc00\ud83d"',
    "NaN": "NaN",
    "infinity": "-Infinity",
    "1e999": "1e999",
    "-1e999": "-1e999",
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
WRONG = {
    "integer": ["true", '"1"', "1.5", "[]", "{}", "1" + "0" * 30, "-" + "9" * 200],
    "number": ["true", '"1"', "[]", "{}", "1" + "0" * 30, "-1e300"],
    "string": ["true", "1", "1.5", "[]", "{}"],
    "boolean": ["1", '"true"', "[]"],
    "array": ["true", "1", '"a"', "{}", "[]", "[null]", "[1]"],
    "object": ["true", "1", '"a"', "[]"],
    "date-time": [
        '"2026-01-31T12:00:00+24:00"',
        '"2026-01-31T12:00:00-99:99"',
        '"2026-01-31T12:00:00"',
        '"2026-02-30T12:00:00Z"',
        '"0000-01-01T00:00:00Z"',
        '"9999-12-31T23:59:59-23:00"',
        '"1769860800"',
        '"now"',
        "1769860800",
    ],
}
LONG = json.dumps("a" * 10_000)
#: Values in an address, encoded.
IN_PATHS = [
    "%00",
    "%ED%A0%80",
    "9" * 5_000,
    "1_7",
    "%EF%BC%91",
    "-1",
    "task%3A",
    "task%3A1e9",
    "%2E",
]
IN_QUERIES = {
    "limit": ["0", "-1", "1e9", "NaN", "true", "9" * 5_000, "%00", ""],
    "cursor": ["x", "%00", "%ED%A0%80", "a.b.c", "9" * 5_000],
    "status": ["%00", "READY", "1"],
    "queue": ["%00", "", "a" * 300],
    "name": ["%00", "", "a" * 300],
    "resource": ["%00", "", "a" * 300],
}
TYPES = ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"]
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "BREW"]
KEYS = ["1", "not-a-uuid", "0" * 5_000]
MIB = 2**20


class Operation(NamedTuple):
    """An operation of the document: ``path`` begins below /api, and ``body`` is one that is
    accepted."""

    name: str
    method: str
    path: str
    parameters: list[dict[str, Any]]
    schema: dict[str, Any]
    body: dict[str, Any] | None

    @property
    def sent(self) -> bytes | None:
        return None if self.body is None else json.dumps(self.body).encode()


@dataclass
class Outcome:
    """The outcome of the calls."""

    cases: int = 0
    server_errors: int = 0
    complaints: list[str] = field(default_factory=list)


class Corpus:
    """The calls of one principal.

    Args:
        site: The site.
        principal: Who calls.
        document: The document of the site.
        given: Values of path parameters and of fields, of rows that are there.
    """

    def __init__(
        self, site: Site, principal: Principal, document: dict[str, Any], given: dict[str, Any]
    ) -> None:
        self._site, self._principal, self._document = site, principal, document
        self._given = given
        self.operations = list(self._operations())
        self.outcome = Outcome()

    def _operations(self) -> Iterator[Operation]:
        for path, methods in self._document["paths"].items():
            for method, known in methods.items():
                content = known.get("requestBody", {}).get("content", {})
                schema = self._resolved(content.get("application/json", {}).get("schema", {}))
                address = self._at(known["operationId"], path.removeprefix("/api"))
                demanded = [each for each in known.get("parameters", ()) if each.get("required")]
                if asked := {name: self._given[name] for name in _named(demanded, "query")}:
                    address = f"{address}?{urlencode(asked)}"
                yield Operation(
                    known["operationId"],
                    method.upper(),
                    address,
                    known.get("parameters", []),
                    schema,
                    self._accepted(known["operationId"], schema) if schema else None,
                )

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            found: dict[str, Any] = self._document["components"]["schemas"][name]
            return found
        return schema

    def _value(self, operation: str, name: str) -> Any:
        kind = "lease"
        if operation in OF_QUEUES:
            kind = "queue"
        elif "task" in operation or operation in OF_TASKS:
            kind = "task"
        return self._given.get(f"{kind}.{name}", self._given.get(name))

    def _at(self, operation: str, path: str) -> str:
        return re.sub(
            r"{(\w+)}", lambda found: quote(str(self._value(operation, found[1])), safe=""), path
        )

    def _accepted(self, operation: str, schema: dict[str, Any]) -> dict[str, Any]:
        body = {}
        for name in schema.get("required", ()):
            known = self._resolved(schema["properties"][name])
            value = self._value(operation, name)
            if known.get("type") == "array":
                value = [self._accepted(operation, self._resolved(known["items"]))]
            elif value is None:
                value = known.get("examples", ["x"])[0]
            body[name] = value
        return body | MORE.get(operation, {})

    def run(self) -> Outcome:
        """Make every call that is wrong."""
        for operation in self.operations:
            self._address(operation)
            self._keys(operation)
            if operation.body is not None:
                self._content(operation, operation.body)
        self._methods()
        return self.outcome

    def control(self) -> None:
        """Call every operation without any evil: it is not the fault of what is around them that
        they were refused."""
        for operation in self.operations:
            headers = {
                each["name"]: str(uuid.uuid4())
                for each in operation.parameters
                if each["in"] == "header" and each["required"]
            }
            status, told = self._send(operation.method, operation.path, operation.sent, headers)
            if status in (400, 413, 415) or status >= 500:
                self._complain(operation, "no evil at all", status, told)

    def _keys(self, operation: Operation) -> None:
        for key in KEYS if "Idempotency-Key" in _named(operation.parameters, "header") else ():
            headers = {"Idempotency-Key": key}
            self._expect_refusal(operation, f"key {key[:20]}", operation.sent, headers)

    def _content(self, operation: Operation, body: dict[str, Any]) -> None:
        for what, raw in self._bodies(operation, body):
            self._expect_refusal(operation, what, raw)
        whole = json.dumps(body).encode()
        for kind in TYPES:
            self._expect_refusal(operation, f"Content-Type {kind!r}", whole, {"Content-Type": kind})
        # Refused before it is read: it does not come.
        length = {"Content-Length": str(10 * MIB)}
        self._expect_refusal(operation, "10 MB", b"{", length)
        self._expect_refusal(operation, "10 MB, unannounced", b" " * (MIB // 8), CHUNKED)

    def _bodies(self, operation: Operation, body: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
        whole = json.dumps(body)
        for text in (
            "",
            " ",
            "null",
            "[]",
            "1",
            '"a"',
            "true",
            whole[:-1],
            whole[:-2],
            whole + "x",
        ):
            yield f"the body {text[-20:]}", text.encode()
        yield "a BOM", whole.encode("utf-8-sig")
        yield "UTF-16", whole.encode("utf-16")
        for place, schema in self._places(operation.schema, body):
            inner = _found(body, place)
            if self._principal.mode == "closed":
                yield "an unknown field", _put(body, (*place, "unknown"), "1")
            for name, known in schema["properties"].items():
                at = (*place, name)
                for what, text in NEVER.items():
                    yield f"{what} in {name}", _put(body, at, text)
                for text in self._wrong(known, name in schema.get("required", ())):
                    yield f"{text[:40]} in {name}", _put(body, at, text)
                if name in inner:
                    twice = json.dumps(inner[name])
                    raw = _put(body, at, f'{twice}, "{name}": {twice}')
                    yield f"{name} twice", raw

    def _places(
        self, schema: dict[str, Any], body: dict[str, Any]
    ) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
        yield (), schema
        for name, known in schema["properties"].items():
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

    def _address(self, operation: Operation) -> None:
        body, pattern = operation.sent, self._pattern(operation)
        for name in re.findall(r"{(\w+)}", pattern):
            for value in IN_PATHS:
                path = self._at(operation.name, pattern.replace(f"{{{name}}}", value))
                self._expect_refusal(operation, f"{value[:20]} in the path", body, path=path)
        for name in _named(operation.parameters, "query"):
            for value in IN_QUERIES.get(name, ()):
                path = f"{operation.path.partition('?')[0]}?{name}={value}"
                self._expect_refusal(operation, f"{name}={value[:20]}", body, path=path)

    def _pattern(self, operation: Operation) -> str:
        for path, methods in self._document["paths"].items():
            known = methods.get(operation.method.lower(), {})
            if known.get("operationId") == operation.name:
                return str(path).removeprefix("/api")
        raise LookupError(operation.name)

    def _methods(self) -> None:
        allowed: dict[str, set[str]] = {}
        for each in self.operations:
            # /leases/renew is an address of /leases/{lease_id}, too.
            allowed.setdefault(each.path, set()).add(each.method)
        for operation in {each.path: each for each in self.operations}.values():
            for method in METHODS:
                if method in allowed[operation.path]:
                    continue
                status, told = self._send(method, operation.path, None)
                if not (400 <= status < 500 and _is_error(told)):
                    self._complain(operation, f"the method {method}", status, told)

    def _expect_refusal(
        self,
        operation: Operation,
        what: str,
        body: bytes | None,
        headers: dict[str, str] | None = None,
        path: str | None = None,
    ) -> None:
        status, told = self._send(operation.method, path or operation.path, body, headers)
        # To clients of the sample, a task that is not there is no error.
        is_notice = self._principal.mode == "compatible" and path is not None and _is_notice(told)
        is_refusal = 400 <= status < 500 and _is_error(told)
        if not (is_refusal or _refuses_items(status, told) or (status == 200 and is_notice)):
            self._complain(operation, what, status, told)

    def _complain(self, operation: Operation, what: str, status: int, told: bytes) -> None:
        if status >= 500:
            self.outcome.server_errors += 1
        text = f"{operation.method} {operation.path[:60]}: {what}: {status} {told[:200]!r}"
        self.outcome.complaints.append(text)

    def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send a request, however wrong it is, and return the status and the body of the answer."""
        self.outcome.cases += 1
        sent = {**self._principal.credentials}
        if body is not None:
            sent |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        sent |= headers or {}
        chunked = sent.get("Transfer-Encoding") == "chunked"
        if chunked:
            del sent["Content-Length"]
        with closing(self._site.connect(NEAR, 120)) as connection:
            connection.putrequest(method, f"/api{path}", skip_accept_encoding=True)
            for name, value in sent.items():
                if value:
                    connection.putheader(name, value)
            connection.endheaders()
            if body:
                connection.send(b"%x\r\n%b\r\n" % (len(body), body) if chunked else body)
            try:
                response = connection.getresponse()
                return response.status, response.read()
            except (OSError, http.client.HTTPException) as error:
                return 599, repr(error).encode()


CHUNKED = {"Transfer-Encoding": "chunked"}
#: Operations of tasks that do not say so in their names.
OF_TASKS = {"report_progress", "store_checkpoint", "list_attempts"}
#: What the document has no words for: one of several fields is needed.
MORE: dict[str, dict[str, Any]] = {
    "reschedule_task": {"at_once": True},
    "enqueue_task": {"data": {"sleep_duration_seconds": 0}},
}
OF_QUEUES = {"pause_queue", "resume_queue"}


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


def _is_error(told: bytes) -> bool:
    try:
        body = json.loads(told)
    except ValueError:
        return False
    return (
        isinstance(body, dict)
        and list(body) == ["error"]
        and isinstance(body["error"], str)
        and bool(body["error"])
    )


def _is_notice(told: bytes) -> bool:
    return told.startswith(b'{"message":"There is no task ')


def _refuses_items(status: int, told: bytes) -> bool:
    """Return True if it is the answer of a batch that refuses each item."""
    try:
        results = json.loads(told)["results"] if status == 200 else []
    except (ValueError, KeyError, TypeError):
        return False
    return bool(results) and all(each["status"] >= 400 and each["error"] for each in results)
