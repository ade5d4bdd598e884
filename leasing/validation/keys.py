"""Keys of rows as they come from outside."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Model


def key_of(model: type[Model], text: Any) -> Any:
    """The key of a row of ``model`` that ``text`` writes.

    Raises ValueError if no row can have it: it is of another kind, out of the database's range,
    or has a NUL, which PostgreSQL stores in no text.
    """
    column: Any = model._meta.pk
    while column.remote_field:  # the key of a parent is the child's
        column = column.target_field
    try:
        key = column.to_python(text)
        column.run_validators(key)
    except (ValidationError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{model.__name__} has no such key.") from error
    if key is None or isinstance(key, str) and "\0" in key:
        raise ValueError(f"{model.__name__} has no such key.")
    return key
