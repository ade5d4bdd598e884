"""Configuration of the demo's application."""

from __future__ import annotations

from django.apps import AppConfig


class BakeryConfig(AppConfig):
    name = "project.bakery"
    label = "demo_bakery"
