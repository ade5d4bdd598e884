"""Settings: typed defaults, read live."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from django.test import override_settings

import leasing
from leasing.conf import AppSettings, LeasingSettings, leasing_settings


def test_what_is_not_set_has_its_default() -> None:
    with override_settings(LEASING={}):
        assert (leasing_settings.TTL, leasing_settings.MIN_TTL) == (30, 1)
        assert leasing_settings.MAX_TTL == 86_400
        assert leasing_settings.API_ACCESS == "closed"
        assert leasing_settings.DATABASE == "default"


def test_settings_are_read_live() -> None:
    with override_settings(LEASING={"TTL": 5}):
        assert leasing_settings.TTL == 5
    with override_settings(LEASING={"TTL": 6}):
        assert leasing_settings.TTL == 6


def test_none_can_be_given_for_all_settings() -> None:
    with override_settings(LEASING=None):
        assert leasing_settings.TTL == 30


def test_a_setting_that_does_not_exist_is_an_error_in_the_code() -> None:
    with override_settings(LEASING={"COLOUR": "red"}), pytest.raises(AttributeError):
        _ = leasing_settings.COLOUR  # type: ignore[attr-defined]


def test_every_setting_has_a_type() -> None:
    upper = {name for name in vars(LeasingSettings) if name.isupper()}

    assert set(LeasingSettings.known()) == upper


def test_every_setting_that_the_code_reads_exists() -> None:
    sources = Path(leasing.__file__).parent.rglob("*.py")
    read = {
        node.attr
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "leasing_settings"
        and node.attr.isupper()
    }

    assert read
    assert read <= set(LeasingSettings.known())


def test_other_apps_can_have_settings_of_this_kind() -> None:
    class Boats(AppSettings):
        LENGTH: int = 7

    boats = Boats("BOATS")

    assert boats.LENGTH == 7
    with override_settings(BOATS={"LENGTH": 9}):
        assert boats.LENGTH == 9
