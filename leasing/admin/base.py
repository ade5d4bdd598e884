"""Base classes for the admins of leasing and tasks, which show and act, and never edit.

Rows change only through the verbs of the querysets, so every form is read-only, nothing is
added or deleted, and an action (``leasing.admin.actions``) asks first and then calls the verb.
Lists are bounded (``leasing.admin.changelist``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import flatten_fieldsets, unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from leasing.admin.actions import confirm_or_perform
from leasing.admin.changelist import BoundedChangeList, CappedPaginator, floor_of
from leasing.admin.columns import NOTHING, column_of
from leasing.admin.filters import is_limited_choice, offered_lookups
from leasing.admin.links import badge_text, related, site_url
from leasing.conf import leasing_settings
from leasing.dashboard.operator_actions import OperatorAction
from leasing.diagnosis.base import Diagnosis
from leasing.models import AuditEntry
from leasing.validation.values import key_of
from leasing.web import navigation
from leasing.web.access import READ_ONLY, is_read_only, why_not
from leasing.web.badges import Badge, badge_of_entry
from leasing.web.counts import COUNT_CAP

#: Entries of the audit in the history of a row.
AUDITED = 50
SEE_AUDIT = "leasing.view_auditentry"
#: The id of a grant proves its term: only users who may end terms see it.
SEE_GRANTS = "leasing.revoke_lease"


@dataclass(frozen=True)
class Panel:
    """The panel above the form of a row: its diagnosis, its links and its acts."""

    badge: SafeString | str = ""
    diagnosis: Diagnosis | None = None
    links: Sequence[SafeString] = ()
    acts: Sequence[OperatorAction] = field(default_factory=list)

    @property
    def answers(self) -> list[tuple[str, str]]:
        """The first four of the five answers; the acts are the fifth."""
        return self.diagnosis.answers[:-1] if self.diagnosis else []

    @property
    def instead(self) -> str:
        """Return the text shown where there is no act."""
        if self.diagnosis and self.diagnosis.actions:
            return why_not("Acting on this")
        return "No action needed."


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Shows rows, acts on them, and edits none."""

    change_list_template = "leasing/admin_list.html"
    change_form_template = "leasing/admin_row.html"
    object_history_template = "leasing/admin_history.html"
    empty_value_display = NOTHING
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    #: Sorting by a column without an index reads the whole table.
    sortable_by: ClassVar[tuple[str, ...]] = ()
    ordering: ClassVar[tuple[str, ...]] = ("-pk",)

    #: Columns with an index, in which the search looks for exactly what was typed, in order.
    exact_search: ClassVar[tuple[str, ...]] = ()
    #: Columns without one, in which it looks among the newest rows.
    recent_search: ClassVar[tuple[str, ...]] = ()
    #: Filters that an index serves, as they stand in the address: by name, or "name=value".
    indexed_filters: ClassVar[frozenset[str]] = frozenset()
    #: Other filters that links lead to. Those of ``list_filter`` and of ``indexed_filters`` may
    #: stand in an address as well, and nothing else: see ``lookup_allowed``.
    linked_filters: ClassVar[frozenset[str]] = frozenset()
    #: Names of columns, where they differ from those of ``leasing.admin.columns``.
    labels: ClassVar[Mapping[str, str]] = {}
    #: Columns that the list does without.
    large: ClassVar[tuple[str, ...]] = ()
    #: Columns among them that are shown only with ``payload_permission``.
    payload: ClassVar[tuple[str, ...]] = ()
    payload_permission: ClassVar[str] = ""
    #: Acts on the rows.
    acts: ClassVar[tuple[OperatorAction, ...]] = ()
    #: The operator's list of these rows, by the name of its view.
    list_page: ClassVar[str] = ""

    class Media:
        css: ClassVar = {"all": ["leasing/admin.css"]}

    # What may be done

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """The acts, in lists. ``action_location`` is new in Django 6.1, which asks for those of a
        row's page too: there they have buttons of their own."""
        if is_read_only() or getattr(action_location, "name", "CHANGE_LIST") != "CHANGE_LIST":
            return {}
        return {
            act.name: (partial(confirm_or_perform, act), act.name, f"{act.label}…")
            for act in self._allowed(request)
        }

    def _allowed(self, request: HttpRequest) -> list[OperatorAction]:
        if is_read_only():
            return []
        return [act for act in self.acts if request.user.has_perm(act.permission)]

    # Lists

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedChangeList]:
        return BoundedChangeList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method == "POST":
            self._check_action(request)
        context = {"operators_list": site_url(self.list_page), "cap": COUNT_CAP}
        return super().changelist_view(request, context | (extra_context or {}))

    def _check_action(self, request: HttpRequest) -> None:
        """Django says "no action selected" of an action that the user may not do."""
        if is_read_only():
            raise PermissionDenied(READ_ONLY)
        requested = {name for name in request.POST.getlist("action") if name}
        if requested - self.get_actions(request).keys():
            raise PermissionDenied("You do not have the permission for this action.")
        if not all(map(self._is_key, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            raise PermissionDenied(
                "The selection is not valid: go back to the list and select again."
            )

    def _is_key(self, text: str) -> bool:
        try:
            key_of(self.model, text)
        except ValueError:
            return False
        return True

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """Return True if ``lookup`` may stand in the address of the list.

        Django lets any lookup of a column through. ``payload__password__startswith`` would read,
        letter by letter, what no page shows, and a regular expression may run for ever.
        """
        named = {served.partition("=")[0] for served in self.indexed_filters}
        is_offered = (
            lookup in self.linked_filters
            or lookup in named
            or lookup in offered_lookups(self.get_list_filter(request))
            or is_limited_choice(self.model, lookup, value)
        )
        # PostgreSQL takes no NUL, and says so when the list is read.
        return is_offered and "\0" not in str(value)

    def rows(self) -> QuerySet[Any]:
        """Every row, in the database where they are, without what is large."""
        every: QuerySet[Any] = self.model._default_manager.using(leasing_settings.DATABASE)
        return every.defer(*self.large)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).using(leasing_settings.DATABASE)
        is_list = bool(request.resolver_match and request.resolver_match.kwargs == {})
        shown = rows.defer(*(self.large if is_list else self._hidden(request)))
        return shown.with_state() if hasattr(shown, "with_state") else shown

    def _hidden(self, request: HttpRequest) -> tuple[str, ...]:
        return () if request.user.has_perm(self.payload_permission) else self.payload

    def column(self, name: Any) -> Any:
        """Return the column ``name`` as the pages show it."""
        if not isinstance(name, str):
            return name
        model: Any = self.model
        return column_of(model, name, self.labels.get(name, ""))

    def get_list_display(self, request: HttpRequest) -> Any:
        return [
            name if name in self.sortable_by else self.column(name)
            for name in super().get_list_display(request)
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [self.column(name) for name in self._shown()]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Without the columns, and the columns shown as ``shown_<column>``, that are hidden."""
        # What one adds, one may see.
        hidden = set(self._hidden(request) if obj is not None else ())
        if obj is not None and not request.user.has_perm(SEE_GRANTS):
            hidden.add("grant_id")
        is_edited = obj is None or self.has_change_permission(request, obj)
        shown = set(self._shown()) if is_edited else None
        sets = []
        for title, options in super().get_fieldsets(request, obj):
            lines = (_without(hidden, line) for line in options["fields"])
            names = [line for line in lines if line]
            if names:
                sets.append((title, {**options, "fields": [self._line(e, shown) for e in names]}))
        return sets

    def _shown(self) -> Sequence[Any]:
        """Every column of the form that is not edited: all, unless the class says otherwise."""
        shown: Sequence[Any] = self.readonly_fields or flatten_fieldsets(
            self.fieldsets or [(None, {"fields": self.fields or ()})]
        )
        return shown

    def _line(self, line: str | Sequence[str], shown: set[Any] | None) -> Any:
        """A line of a form with its columns as the pages show them: those that are ``shown`` and
        not edited; None is all."""
        if isinstance(line, str):
            return self.column(line) if shown is None or line in shown else line
        return [self._line(name, shown) for name in line]

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        return self.exact_search

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Rows of which the first of the ``exact_search`` columns that has it is what was typed,
        or where none has it, the newest of which one of ``recent_search`` is. Never one column or
        another: for that the planner may read the whole table in the order of its key."""
        term = search_term.strip()
        if not term:
            return queryset, False
        for name in self.exact_search:
            found = self._is(term, name)
            if found and self.rows().filter(found).exists():
                return queryset.filter(found), False
        recent = [found for name in self.recent_search if (found := self._is(term, name))]
        if not recent:
            return queryset.none(), False
        newest = Q(pk__gt=floor_of(self.rows()))
        return queryset.filter(newest, reduce(or_, recent)), False

    def _is(self, term: str, name: str) -> Q:
        """Return a condition that the column ``name`` equals the search term; empty when it never
        can."""
        try:
            return Q(**{name: self.model._meta.get_field(name).to_python(term)})
        except (ValidationError, ValueError):
            return Q()

    # One row

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        if from_field is None and not self._is_key(object_id):
            return None
        return super().get_object(request, object_id, from_field)

    def diagnosis(self, row: Any) -> tuple[Badge | None, Diagnosis | None]:
        """Why ``row`` is as it is, with a badge of how grave that is."""
        return None, None

    def view_on_site(self, row: Any) -> str | None:
        """Return the URL of the operator's page of ``row``, if there is one."""
        return navigation.url_of(row._meta.label_lower, row.pk) or None

    def links(self, request: HttpRequest, row: Any) -> list[SafeString | str]:
        """Return the links of ``row``, as ``related`` names them."""
        return []

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        if obj is not None:
            badge, diagnosis = self.diagnosis(obj)
            links = [*self.links(request, obj), self._audit_of(request, obj)]
            context["panel"] = Panel(
                badge_text(badge) if badge else "",
                diagnosis,
                [each for each in links if isinstance(each, SafeString)],
                [
                    act
                    for act in self._allowed(request)
                    if act.preview(self.rows(), {obj.pk: None}, {}).applicable
                ],
            )
        return super().render_change_form(request, context, add, change, form_url, obj)

    def _audit_of(self, request: HttpRequest, row: Any) -> SafeString | str:
        about = {"model__exact": row._meta.label_lower, "key__exact": row.pk}
        return related(request, "Operator actions", AuditEntry, about)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Django's history, which knows the admin alone, and the audit, which knows all ways."""
        context: dict[str, Any] = {}
        if request.user.has_perm(SEE_AUDIT) and self._is_key(unquote(object_id)):
            entries = AuditEntry.objects.using(leasing_settings.DATABASE).filter(
                model=self.model._meta.label_lower, key=unquote(object_id)
            )
            context["audited"] = [
                (each, badge_text(badge_of_entry(each))) for each in entries[:AUDITED]
            ]
        return super().history_view(request, object_id, context | (extra_context or {}))


def _without(hidden: set[str], line: str | Sequence[str]) -> str | Sequence[str]:
    """A line of a form, one name or several, without the ``hidden`` columns."""
    if isinstance(line, str):
        return "" if line.removeprefix("shown_") in hidden else line
    return [name for name in line if _without(hidden, name)]
