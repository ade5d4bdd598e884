"""The page where operators sign in: also those who are not staff, whom the admin turns away."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, resolve_url
from django.urls import reverse

from leasing.web import navigation


class Login(LoginView):
    """Signs in any active user, while LOGIN_URL names this page: a site whose users sign in
    elsewhere, perhaps with a second factor, gets no other door by mounting our pages."""

    template_name = "leasing/login.html"

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        elsewhere = resolve_url(settings.LOGIN_URL)
        if elsewhere.partition("?")[0] != reverse("leasing:login"):
            return redirect(elsewhere)
        return super().dispatch(request, *args, **kwargs)

    def get_default_redirect_url(self) -> str:
        """Return the first page that the user may open, for who came without an address."""
        entries = navigation.menu(self.request)
        return str(entries[0]["url"]) if entries else reverse("leasing:list")
