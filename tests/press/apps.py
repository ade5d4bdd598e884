"""An app of the tests, as a user would write it: rows that refuse an older fencing token."""

from __future__ import annotations

from django.apps import AppConfig


class PressConfig(AppConfig):
    name = "tests.press"
    label = "press"
