"""Keys from outside, before a database sees them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import models
from django.test.utils import isolate_apps

from leasing.models import Lease
from leasing.validation.values import key_of


@pytest.mark.parametrize(("text", "key"), [("17", 17), (" 18 ", 18), (19, 19), ("-1", -1)])
def test_a_number_is_a_key(text: Any, key: int) -> None:
    assert key_of(Lease, text) == key


@pytest.mark.parametrize("text", ["", "x", "a\0b", "9" * 19, "9" * 5_000, '{"a":1}', None, [1]])
def test_what_no_row_can_have_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="Lease has no such key"):
        key_of(Lease, text)


def test_text_without_nul_is_a_key_of_a_model_that_has_text() -> None:
    assert key_of(Session, "abc") == "abc"
    for text in ("a\0b", "x" * 41):
        with pytest.raises(ValueError, match="no such key"):
            key_of(Session, text)


@isolate_apps("leasing")
def test_the_key_of_a_child_is_judged_as_its_parents() -> None:
    class Child(models.Model):
        parent = models.OneToOneField(Lease, models.CASCADE, primary_key=True)

        class Meta:
            app_label = "leasing"

    assert key_of(Child, "17") == 17
    for text in ("x", "9" * 19):
        with pytest.raises(ValueError, match="Child has no such key"):
            key_of(Child, text)
