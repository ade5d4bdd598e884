"""What the admins of leasing and tasks have in common: they look and act, and never edit.

Rows change only through the verbs of the querysets, so every form is read-only, nothing is
added or deleted, and an action asks first and then calls the verb.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from leasing import audit
from leasing.access import READ_ONLY, is_read_only
from leasing.paging import COUNT_CAP, capped_count
from leasing.signs import Sign

#: How many rows one action takes at most.
MOST_AT_ONCE = 1_000
#: How many of them the confirmation page names.
NAMED = 20
#: How much of a name a list shows.
SHOWN = 60


if TYPE_CHECKING:
    PaginatorOfAny = Paginator[Any]
    AdminOfAny = admin.ModelAdmin[Any]
else:
    # Django's own classes take no type arguments at run time.
    PaginatorOfAny, AdminOfAny = Paginator, admin.ModelAdmin


class CappedPaginator(PaginatorOfAny):
    """A paginator that never counts a whole table."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return min(capped_count(rows).value, COUNT_CAP)
        return len(rows)


class ReadOnlyAdmin(AdminOfAny):
    """Shows rows and changes none."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    #: Sorting by a column without an index reads the whole table.
    sortable_by: ClassVar[tuple[str, ...]] = ()
    ordering: ClassVar[tuple[str, ...]] = ("-pk",)

    #: Columns in which the search looks for exactly what was typed.
    exact_search: ClassVar[tuple[str, ...]] = ()
    #: Columns that the list does without.
    large: ClassVar[tuple[str, ...]] = ()

    class Media:
        css: ClassVar = {"all": ["leasing/admin.css"]}

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        return {} if is_read_only() else super().get_actions(request)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if request.method == "POST" and is_read_only():
            raise PermissionDenied(READ_ONLY)
        return super().changelist_view(request, extra_context)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        is_list = bool(request.resolver_match and request.resolver_match.kwargs == {})
        return rows.defer(*self.large) if is_list else rows

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        return self.exact_search

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Rows one of whose ``exact_search`` columns is what was typed, as an index finds it."""
        term = search_term.strip()
        if not term:
            return queryset, False
        found = Q(pk__in=[])
        for name in self.exact_search:
            field = self.model._meta.get_field(name)
            try:
                found |= Q(**{name: field.to_python(term)})
            except (ValidationError, ValueError):
                continue
        return queryset.filter(found), False


def short(text: str) -> str:
    """``text`` as a column of a list can bear it; its page has all of it."""
    return Truncator(text).chars(SHOWN)


def site_url(view: str, *args: Any) -> str | None:
    """Where the operator's pages show a row, if they are mounted: for "view on site"."""
    try:
        return reverse(view, args=args)
    except NoReverseMatch:
        return None


def badge(sign: Sign) -> SafeString:
    """The sign of a state, as text: the mark stands for the icon."""
    return format_html(
        '<span class="leasing-badge leasing-{}">{} {}</span>', sign.tone, sign.mark, sign.word
    )


def link(text: object, view: str, *args: Any, query: str = "") -> SafeString | str:
    """``text`` as a link to a page of the admin, or alone where there is no such page."""
    try:
        url = reverse(view, args=args)
    except NoReverseMatch:
        return str(text)
    return format_html('<a href="{}{}">{}</a>', url, query, text)


class Confirmed:
    """An action that shows what it would do and asks before it does it.

    ``verb`` gets the chosen rows, the cleaned form and the user's name, and returns how many
    rows it changed; ``audited`` is what the audit calls it. ``consequence`` is what the page
    states.
    """

    #: Or the template that shows the action would call it.
    do_not_call_in_templates = True

    def __init__(
        self,
        name: str,
        question: str,
        consequence: str,
        form: type[forms.Form],
        verb: Callable[[Any, dict[str, Any], str], int],
        audited: str,
    ) -> None:
        self.name = name
        self.audited = audited
        self.question = question
        self.consequence = consequence
        self.form = form
        self.verb = verb

    def __call__(
        self, site: ReadOnlyAdmin, request: HttpRequest, rows: QuerySet[Any]
    ) -> HttpResponse | None:
        """Ask, or do it when the form that asks was sent. A selection of everything is fixed to
        the rows it had when it was asked about."""
        keys = list(rows.order_by().values_list("pk", flat=True)[: MOST_AT_ONCE + 1])
        if len(keys) > MOST_AT_ONCE:
            text = f"Choose at most {MOST_AT_ONCE:,} rows at once. Nothing was changed."
            site.message_user(request, text, messages.ERROR)
            return None
        form = self.form(request.POST if "confirmed" in request.POST else None)
        if form.is_bound and form.is_valid():
            self._do(site, request, keys, form.cleaned_data)
            return None
        context = {
            **site.admin_site.each_context(request),
            "title": self.question,
            "opts": site.model._meta,
            "action": self,
            "form": form,
            "keys": keys,
            "named": list(self._rows(site, keys).defer(*site.large)[:NAMED]),
            "more": max(0, len(keys) - NAMED),
            "media": site.media,
        }
        return TemplateResponse(request, "leasing/admin_confirm.html", context)

    def _do(
        self, site: ReadOnlyAdmin, request: HttpRequest, keys: list[Any], said: dict[str, Any]
    ) -> None:
        user: Any = request.user
        reason = said.get("reason", "")
        with audit.recording(
            user, self.audited, site.model, keys=keys, reason=reason, via="admin"
        ) as act:
            changed = act.changed = self.verb(self._rows(site, keys), said, act.by)
        message = f"{self.name}: {reason}" if reason else self.name
        user_key: Any = request.user.pk
        LogEntry.objects.log_actions(
            user_key, self._rows(site, keys).defer(*site.large), CHANGE, message
        )
        level = messages.SUCCESS if changed == len(keys) else messages.WARNING
        skipped = (
            f"; {len(keys) - changed} were not in a state for it" if changed < len(keys) else ""
        )
        site.message_user(request, f"{changed} of {len(keys)} changed{skipped}.", level)

    @staticmethod
    def _rows(site: ReadOnlyAdmin, keys: list[Any]) -> Any:
        return site.model._default_manager.filter(pk__in=keys)
