"""The names of resources and holders."""

from __future__ import annotations

from typing import Any

import pytest

from leasing.exceptions import InvalidResource
from leasing.models import Lease

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("argument", ["resource", "holder"])
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (7, "must be a string, not int"),
        (b"crane", "must be a string, not bytes"),
        ("", "must have 1 to 200 characters"),
        ("x" * 201, "must have 1 to 200 characters"),
        ("a\nb", "must not contain control characters"),
        ("a\x00b", "must not contain control characters"),
        ("\ud800", "must not contain control characters"),
        (" crane", "must not begin or end with a space"),
        ("crane ", "must not begin or end with a space"),
    ],
)
def test_an_unusable_name_is_refused(argument: str, name: Any, complaint: str) -> None:
    names = {"resource": "crane:1", "holder": "ann"} | {argument: name}

    with pytest.raises(InvalidResource, match=f"^The {argument} {complaint}"):
        Lease.objects.acquire(**names)

    assert not Lease.objects.exists()


def test_a_resource_must_be_named() -> None:
    with pytest.raises(InvalidResource, match="must be a string, not NoneType"):
        Lease.objects.acquire(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["x", "x" * 200, "Kran 7 (Süd)", "起重机", "%s", "a/b?c=d#e"])
def test_any_printable_name_will_do(name: str) -> None:
    lease = Lease.objects.acquire(name, holder=name)

    assert (lease.resource, lease.holder) == (name, name)


def test_the_holder_defaults_to_this_process() -> None:
    first, second = Lease.objects.acquire("crane:1"), Lease.objects.acquire("crane:2")

    assert first.holder == second.holder != ""
