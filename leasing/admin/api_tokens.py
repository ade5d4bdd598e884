"""Tokens of the API in Django's admin: made, shown and revoked, and never changed.

The secret is on the page that follows the form, and on no other: it is in no message, session or
redirect. That page is stored by no cache; loading it again would send the form again, and is
refused, because the name is taken.
"""

from __future__ import annotations

from datetime import timedelta
from operator import methodcaller
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AdminSplitDateTime
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers
from django.utils.safestring import SafeString
from django.utils.timezone import now

from leasing import audit
from leasing.admin.base import ReadOnlyAdmin
from leasing.admin.columns import NOTHING
from leasing.admin.filters import StateFilter
from leasing.admin.links import badge_column, column, related, short_column
from leasing.conf import leasing_settings
from leasing.dashboard.forms import ReasonForm
from leasing.dashboard.operator_actions import OperatorAction
from leasing.functions import DbNow
from leasing.models import ApiToken, AuditEntry
from leasing.models.api_token import TokenState, known_scopes
from leasing.validation.names import TOKEN
from leasing.web.access import is_read_only
from leasing.web.badges import TOKEN_BADGES

#: Until a token expires, unless the form says otherwise.
LIFETIME = timedelta(days=365)
EDITED = ("name", "scopes", "prefix", "queues", "expires_at")

REVOKE_TOKENS = OperatorAction(
    "revoke",
    "Revoke tokens",
    "Revoked",
    "Revoke these tokens?",
    "They are refused from the next request on, and cannot be made valid again. What they hold "
    "stays held until it expires or is revoked.",
    "leasing.revoke_apitoken",
    ReasonForm,
    lambda rows, form_data, by: rows.revoke(),
    lambda row, form_data: "" if row.revoked_at is None else "revoked",
    of_one="Revoke token",
)


class TokenStateFilter(StateFilter):
    """A filter by the state of the token."""

    states = {state.value: methodcaller(state.value) for state in TokenState}


class QueuesField(forms.CharField):
    """Names of queues, separated by commas."""

    def clean(self, value: Any) -> list[str]:
        text = super().clean(value)
        return sorted({name.strip() for name in text.split(",") if name.strip()})


class TokenForm(forms.ModelForm):  # type: ignore[type-arg]
    """Make a token. Its meaning is checked by ``clean`` of the model."""

    scopes = forms.MultipleChoiceField(
        widget=forms.CheckboxSelectMultiple,
        help_text="The permissions that routes of the API require, as far as you have them.",
    )
    queues = QueuesField(
        required=False, help_text="Only tasks of these queues, separated by commas; empty: all."
    )
    expires_at = forms.SplitDateTimeField(
        widget=AdminSplitDateTime,
        required=False,
        initial=lambda: (now() + LIFETIME).replace(microsecond=0),
        help_text="Refused from then on; empty: never.",
        label="Expires",
    )

    class Meta:
        model = ApiToken
        fields = EDITED
        help_texts: ClassVar = {
            "name": "In lists and ledgers. No other token has it, nor will have.",
            "prefix": "Only resources whose names begin with it; empty: all.",
        }

    #: The user whose form it is.
    user: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["scopes"]
        assert isinstance(field, forms.MultipleChoiceField)
        # A token that may do more than its maker would be a way to more.
        own = filter(self.user.has_perm, sorted(known_scopes()))
        field.choices = [(each, each) for each in own]


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    """Adds, unlike its base."""

    form = TokenForm
    list_display = ("called", "badge", "may", "expires_at", "last_used_at", "created_at")
    list_filter = (TokenStateFilter,)
    exact_search = ("name", "id")
    search_help_text = "Exact name or ID"
    acts = (REVOKE_TOKENS,)
    labels: ClassVar = {"expires_at": "expires"}
    fields = (*EDITED, "badge", "last_used_at", "revoked_at", "created_at")
    readonly_fields = ("badge", "last_used_at", "revoked_at", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(now=DbNow())
        return rows

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return no fields of state for a row that does not exist yet."""
        return EDITED if obj is None else super().get_fields(request, obj)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Return the form of this user."""
        base: Any = super().get_form(request, obj, change, **kwargs)

        class FormOfUser(base):  # type: ignore[misc]
            user = request.user

        return FormOfUser

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not is_read_only() and admin.ModelAdmin.has_add_permission(self, request)

    def save_model(
        self, request: HttpRequest, obj: ApiToken, form: forms.ModelForm[ApiToken], change: bool
    ) -> None:
        """Store a new token and note it, in the transaction of the page."""
        obj.secret = obj.draw_secret()  # type: ignore[attr-defined]
        obj.save(using=leasing_settings.DATABASE, force_insert=True)
        user: Any = request.user
        named = {"name": obj.name}
        audit.record(user, "create", ApiToken, keys=[obj.pk], filter=named, changed=1, via="admin")

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": f"The secret of {obj.name}",
            "opts": self.model._meta,
            "token": obj,
            "media": self.media,
        }
        response = TemplateResponse(request, "leasing/admin_token.html", context)
        add_never_cache_headers(response)
        return response

    def links(self, request: HttpRequest, token: Any) -> list[SafeString | str]:
        return [
            related(request, "Actions over the API", AuditEntry, {"by__exact": f"{TOKEN}{token}"})
        ]

    called = short_column("name")
    badge = badge_column(lambda token: TOKEN_BADGES[token.state_at(token.now)])
    may = column("scopes", lambda token: ", ".join(token.scopes) or NOTHING)
