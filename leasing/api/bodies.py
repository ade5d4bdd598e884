"""JSON in and out of the API: limits of a request's body, and names of the fields of answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, wraps
from typing import Annotated, Any, ClassVar, NoReturn

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from ninja import Query, Status
from ninja.errors import HttpError
from ninja.parser import Parser
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    StringConstraints,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema

from leasing.conf import leasing_settings
from leasing.runtime.terminal import closest
from leasing.validation.names import MAX_BODY, MAX_NAME, MAX_RENEWAL_BODY
from leasing.validation.values import dumped_json

#: The greatest size of the bodies of addresses for which it is not MAX_BODY, in bytes.
MAX_BODY_AT = {"/leases/renew/batch": MAX_RENEWAL_BODY}
#: The deepest nesting of objects and lists: SQLite's JSON stops at 1,000, and so does Python.
MAX_DEPTH = 64
#: The greatest length of a number, in characters.
MAX_NUMBER = 300

#: The type of the content of every answer.
JSON = "application/json; charset=utf-8"

#: Methods whose body nobody reads.
_BODILESS = ("GET", "HEAD")


def refuse_body(request: HttpRequest) -> None:
    """Raise HttpError if the headers already say that the body is too large or no JSON.

    A form is refused unread: a page of any other site can send one without a preflight request.
    """
    length = _content_length(request)
    if length > (allowed := _max_body(request)):
        _refuse_size(allowed)
    has_body = length > 0 or "HTTP_TRANSFER_ENCODING" in request.META
    if has_body and request.method not in _BODILESS and request.content_type != "application/json":
        raise HttpError(415, "The body must be JSON, with Content-Type application/json.")


def _content_length(request: HttpRequest) -> int:
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0


def _max_body(request: HttpRequest) -> int:
    """Return the greatest size of the body of ``request``, in bytes."""
    for address, size in MAX_BODY_AT.items():
        if request.path.endswith(address):
            return size
    return MAX_BODY


def _refuse_size(allowed: int) -> NoReturn:
    raise HttpError(413, f"The body must not exceed {allowed} bytes.")


class BodyParser(Parser):
    """Reads a JSON object that every supported database could store; anything else is a 400."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        try:
            body = _decode(_body_of(request).decode())
        except RecursionError as error:
            raise HttpError(400, _TOO_DEEP) from error
        except ValueError as error:
            raise HttpError(400, f"The body is not JSON: {error}.") from error
        if not isinstance(body, dict):
            raise HttpError(400, "The body must be a JSON object.")
        try:
            dumped_json(body, "body", MAX_DEPTH)
        except ValueError as error:
            raise HttpError(400, str(error)) from error
        return body


def _body_of(request: HttpRequest) -> bytes:
    """Return the body. Reads at most the allowed size, since Content-Length may be missing."""
    most = _max_body(request)
    if not hasattr(request, "_body"):
        allowed = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if allowed is not None and _content_length(request) > allowed:
            _refuse_size(allowed)
        request._body = request.read(most + 1)
    if len(request.body) > most:
        _refuse_size(most)
    return request.body


_TOO_DEEP = f"The body is nested more than {MAX_DEPTH} levels deep."


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # a proxy may have used the other value
        raise ValueError("an object has a key twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _float(text: str) -> float:
    number = float(text)
    if len(text) > MAX_NUMBER or not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _int(text: str) -> int:
    if len(text) > MAX_NUMBER:
        raise ValueError("a number is too large")
    return int(text)


_decode = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float, parse_int=_int
).decode


def _utc_milliseconds(moment: datetime) -> str:
    if moment.tzinfo is not UTC:  # times from a database are in UTC already
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"


#: A time in an answer: ISO 8601, UTC, milliseconds, Z.
Moment = Annotated[
    datetime,
    PlainSerializer(_utc_milliseconds, return_type=str),
    WithJsonSchema(
        {"type": "string", "format": "date-time", "examples": ["2026-01-31T12:00:00.000Z"]}
    ),
]


def _digits(value: object) -> object:
    # Python reads "1_0", "+10", " 10" and digits of any alphabet as a number, too.
    if isinstance(value, str) and not (value.isascii() and value.isdecimal()):
        raise ValueError("must be a whole number, in digits")
    return value


#: Rows that a list shows.
Limit = Annotated[
    int, Query(ge=1, le=1000, description="Maximum number of rows."), BeforeValidator(_digits)
]


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


#: For a field that takes whole numbers: JSON does not distinguish 2.0 from 2.
WHOLE = BeforeValidator(_whole)


class Between:
    """The bounds of a number. If a bound is a setting of LEASING, requests and the document use the
    current value of the setting.

    Args:
        lowest: The least value, or the name of a setting.
        highest: The greatest value, or the name of a setting.
    """

    def __init__(self, lowest: float | str, highest: float | str) -> None:
        self._bounds = lowest, highest

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        lowest, highest = self._now()
        return {**handler(schema), "minimum": lowest, "maximum": highest}

    def _now(self) -> tuple[float, float]:
        lowest, highest = (
            getattr(leasing_settings, each) if isinstance(each, str) else each
            for each in self._bounds
        )
        return lowest, highest

    def _checked(self, value: float) -> float:
        lowest, highest = self._now()
        if not lowest <= value <= highest:  # which NaN fails, too
            raise ValueError(f"must be from {lowest:.12g} to {highest:.12g}")
        return value


class Keywords:
    """Adds keywords to a field in the document, for conditions that are checked elsewhere."""

    def __init__(self, **keywords: Any) -> None:
        self._keywords = keywords

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), **self._keywords}


#: Any text that every supported database stores.
Text = Annotated[str, Keywords(pattern=r"^[^\x00]*$")]

#: Text that is not empty after the spaces around it are removed.
Words = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1),
    Keywords(pattern=r"^[^\x00]*[^\s\x00][^\x00]*$"),
]

#: The name of a resource, a holder, a queue, ...: checked where it is used.
Name = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_NAME,
            "format": "printable",
            "pattern": r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$",
            "description": "Printable characters, no space at either end.",
        }
    ),
]


def document_fields(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Declare in the ``schema`` of a body if unknown fields are allowed."""
    if leasing_settings.API_ACCESS != "compatible":
        schema["additionalProperties"] = False


class Request(BaseModel):
    """A request body. Values are not converted between strings and numbers. Unknown fields are
    refused, except in the compatible mode, whose clients may send some."""

    model_config = ConfigDict(strict=True, json_schema_extra=document_fields)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, body: Any) -> Any:
        if isinstance(body, dict) and leasing_settings.API_ACCESS != "compatible":
            known = _names_in(cls)
            if unknown := body.keys() - known:
                name = min(unknown)
                meant = closest(name, known)
                hint = f" (did you mean {meant}?)" if meant else ""
                raise ValueError(f"there is no field {name[:MAX_NAME]!r}{hint}")
        return body


@cache
def _names_in(model: type[BaseModel]) -> frozenset[str]:
    """Return the names that a body may use for the fields of ``model``."""
    names: set[str] = set()
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        names |= set(map(str, alias.choices)) if isinstance(alias, AliasChoices) else {name}
    return frozenset(names)


class Sparse(BaseModel):
    """An answer that leaves out fields which are null."""


def rendered(answer: Any) -> HttpResponse:
    """Return the response of ``answer``, a model or a Status with one, written as JSON at once."""
    is_status = isinstance(answer, Status)
    model = answer.value if is_status else answer
    text = model.model_dump_json(exclude_none=isinstance(model, Sparse))
    status = answer.status_code if is_status else 200
    return HttpResponse(text.encode(), status=status, content_type=JSON)


def as_json(view: Callable[..., Any]) -> Callable[..., HttpResponse]:
    """Return ``view`` with its answer ``rendered``, for all views of a router. ninja itself would
    first convert the model to a dictionary, and then the dictionary to text."""

    @wraps(view)
    def answering(request: HttpRequest, **arguments: Any) -> HttpResponse:
        answer = view(request, **arguments)
        return answer if isinstance(answer, HttpResponse) else rendered(answer)

    return answering


class Error(BaseModel):
    """The body of every error."""

    error: str


class Notice(BaseModel):
    """The body of an answer that contains only a message."""

    message: str


def _document_both(schema: dict[str, Any], model: type[BaseModel]) -> None:
    assert issubclass(model, BothSpellings)
    if leasing_settings.API_ACCESS != "compatible":
        return
    properties = schema["properties"]
    for name in list(properties):
        if (sample := model.sample_spelling(name)) != name:
            text = f"{name}, for clients of the sample service."
            properties[sample] = {**properties[name], "title": sample, "description": text}


class BothSpellings(BaseModel):
    """An answer in snake case, and in the compatible mode in the sample's camel case too:
    its clients read now one, now the other."""

    model_config = ConfigDict(json_schema_extra=_document_both)

    #: Fields whose name in the sample is not the camel case of the field.
    SAMPLE: ClassVar[dict[str, str]] = {}

    @classmethod
    def sample_spelling(cls, name: str) -> str:
        """Return the name that the sample gives to the field ``name``."""
        return cls.SAMPLE.get(name) or to_camel(name)

    # Without a return type, the document shows the fields instead of "some object".
    @model_serializer(mode="wrap")
    def _in_both(self, handler: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        fields: dict[str, Any] = handler(self)
        if leasing_settings.API_ACCESS == "compatible":
            fields |= {self.sample_spelling(name): value for name, value in fields.items()}
        return fields
