"""The page that shows the OpenAPI document.

Plain HTML in the frame of the operator's pages: no script of its own, nothing from another site.
Everything on it is read from the document, so what is not documented is not shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from ninja import NinjaAPI
from ninja.openapi.docs import DocsBase

from leasing.api.document import TOKEN

#: The order of methods in a group of operations of one address.
METHODS: Final = ("get", "post", "put", "delete")
#: The keywords for the bounds of a value, and the unit that is shown with them.
LENGTHS: Final = (("minLength", "maxLength", "characters"), ("minItems", "maxItems", "items"))


class DocumentPage(DocsBase):
    """Renders the page: give it to the API as ``docs``."""

    def render_page(self, request: HttpRequest, api: NinjaAPI, **kwargs: Any) -> HttpResponse:
        """Answer the page of the document of ``api``."""
        # Through JSON, so that the page reads what a client reads: keys are strings, for example.
        document = json.loads(json.dumps(api.get_openapi_schema(path_params=kwargs), default=str))
        shown = {
            "api": document["info"],
            "groups": groups_of(document, f"{request.scheme}://{request.get_host()}"),
            "schemas": list(schemas_of(document)),
            "is_closed": "securitySchemes" in document["components"],
            "document_url": self.get_openapi_url(api, kwargs),
        }
        return render(request, "leasing/api.html", shown)


def groups_of(document: dict[str, Any], site: str) -> list[dict[str, Any]]:
    """Return the operations of ``document``, which is served by ``site``, by their tags."""
    groups: dict[str, dict[str, Any]] = {}
    for path, methods in document["paths"].items():
        for method in sorted(methods, key=METHODS.index):
            operation = methods[method]
            name = operation.get("tags", ["other"])[0]
            group = groups.setdefault(name, {"name": name, "operations": []})
            group["operations"].append(_operation(document, site, method, path, operation))
    return list(groups.values())


def schemas_of(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the name, the description and the fields of each schema of ``document``."""
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield {
            "name": name,
            "description": schema.get("description", ""),
            "fields": _fields(schema),
        }


def _operation(
    document: dict[str, Any], site: str, method: str, path: str, operation: dict[str, Any]
) -> dict[str, Any]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = _resolved(document, body.get("schema", {}))
    security = operation.get("security", ())
    required: list[str] = next((each[TOKEN] for each in security if TOKEN in each), [])
    return {
        "key": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "summary": operation["summary"],
        "description": operation.get("description", ""),
        "permission": ", ".join(required),
        "parameters": [_parameter(each) for each in operation["parameters"]],
        "body": _fields(schema),
        "answers": [_answer(*each) for each in sorted(operation["responses"].items())],
        "example": _example(method, f"{site}{path}", schema, is_closed=bool(required)),
    }


def _parameter(parameter: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": parameter["name"],
        "kind": f"{_kind(parameter['schema'])}, in the {parameter['in']}",
        "is_required": parameter["required"],
        "description": parameter.get("description", ""),
    }


def _answer(status: str, answer: dict[str, Any]) -> dict[str, Any]:
    (content,) = answer.get("content", {}).values() or [{}]
    schema = content.get("schema", {})
    return {
        "status": status,
        "description": answer["description"],
        "schema": _name_of(schema),
        "kind": _kind(schema) if schema else "",
        "headers": list(answer.get("headers", ())),
    }


def _fields(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", ())
    return [
        {
            "name": name,
            "kind": _kind(each),
            "is_required": name in required,
            "description": each.get("description", ""),
            "schema": _name_of(each),
        }
        for name, each in schema.get("properties", {}).items()
    ]


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = _name_of(schema)
    found: dict[str, Any] = document["components"]["schemas"][name] if name else schema
    return found


def _name_of(schema: dict[str, Any]) -> str:
    """Return the name of the one schema to which ``schema``, its items or one of its alternatives
    refers; empty if there is none, or more than one."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    inner = [schema.get("items"), *schema.get("anyOf", ()), *schema.get("allOf", ())]
    names = {name for each in inner if each and (name := _name_of(each))}
    return names.pop() if len(names) == 1 else ""


def _kind(schema: dict[str, Any]) -> str:
    """Return a phrase about the values of ``schema``: "string of 1 to 200 characters, or null"."""
    if "$ref" in schema:
        return _name_of(schema)
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(map(json.dumps, schema.get("enum", [schema.get("const")])))
    kind: str = schema.get("type", "any JSON")
    if kind == "array":
        kind = f"list of {_kind(schema.get('items', {}))}"
    if kind == "string" and schema.get("format") in ("date-time", "uuid"):
        kind = {"date-time": "time", "uuid": "UUID"}[schema["format"]]
    for lowest, highest, unit in LENGTHS:
        kind += _bounds(schema.get(lowest), schema.get(highest), " of", f" {unit}")
    return kind + _bounds(schema.get("minimum"), schema.get("maximum"), "", "")


def _bounds(lowest: Any, highest: Any, before: str, after: str) -> str:
    if lowest is None and highest is None:
        return ""
    if highest is None:
        return f"{before} {lowest:g} or more{after}"
    if lowest is None:
        return f"{before} up to {highest:g}{after}"
    between = f"{lowest:g} to {highest:g}" if before else f"from {lowest:g} to {highest:g}"
    return f"{before} {between}{after}"


def _example(method: str, address: str, schema: dict[str, Any], *, is_closed: bool) -> str:
    """Return a curl command for ``address``, with the required fields that have an example."""
    parts = ["curl" if method == "get" else f"curl -X {method.upper()}", address]
    if is_closed:
        parts.append("-H 'Authorization: Bearer TOKEN'")
    if schema:
        required = schema.get("required", ())
        body = {
            name: each["examples"][0]
            for name, each in schema.get("properties", {}).items()
            if name in required and "examples" in each
        }
        parts += ["-H 'Content-Type: application/json'", f"-d '{json.dumps(body)}'"]
    return " \\\n  ".join(parts)
