from __future__ import annotations

from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "tests.typed_app"
    label = "billing"
