"""Schedules in Django's admin: one's own are made and changed there, those of code are paused."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from leasing import audit
from leasing.admin.base import ReadOnlyAdmin
from leasing.admin.links import badge_column, column, json_column, link, related, short
from leasing.conf import leasing_settings
from leasing.functions import DbNow, database_now
from leasing.humanize import stamp
from leasing.web.access import is_read_only
from tasks.admin.attempts import task_of
from tasks.dashboard.forms import DataField
from tasks.dashboard.schedule_actions import SCHEDULE_ACTIONS
from tasks.dashboard.schedule_status import ACTIVE, ScheduleStatus, is_orphaned, status_of
from tasks.models import Queue, Schedule, ScheduleSlot
from tasks.querysets.schedule import RULE

if TYPE_CHECKING:
    FormOfSchedule = forms.ModelForm[Schedule]
else:
    # Django's own class takes no type arguments at run time.
    FormOfSchedule = forms.ModelForm

#: Fields of a schedule that a form may set.
EDITED = (
    "name",
    "task_name",
    "task_data",
    "queue",
    "priority",
    "cron",
    "every",
    "timezone",
    "missed",
    "overlap",
)


class ScheduleForm(FormOfSchedule):
    """Edit a schedule that no code declares. Its meaning is checked by ``clean``."""

    class Meta:
        model = Schedule
        fields = EDITED
        field_classes: ClassVar = {"task_data": DataField}
        labels: ClassVar = {
            "task_data": "Arguments",
            "every": "Interval",
            "missed": "Missed due times",
            "timezone": "Time zone",
            "overlap": "Allow overlap",
        }
        help_texts: ClassVar = {
            "task_name": "Name of the handler to enqueue.",
            "task_data": "Keyword arguments of the handler, as JSON.",
            "queue": "Leave empty for the handler's own queue.",
            "priority": "Higher runs first.",
            "cron": "Five fields: minute, hour, day of month, month, day of week.",
            "every": "Instead of cron: an interval as hours:minutes:seconds.",
            "timezone": "Time zone of the cron expression, such as Europe/Berlin.",
            "missed": "Which due times to catch up on after a time without workers.",
            "overlap": "If off, a due time is skipped while the previous task has not ended.",
        }


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    """Edits, unlike its base: but only what no code declares."""

    form = ScheduleForm
    list_display = ("name", "task_name", "when", "badge", "next_at", "declared")
    list_filter = ("declared",)
    exact_search = ("id", "name", "task_name")
    search_help_text = "ID, or exact name of a schedule or of its task"
    indexed_filters = frozenset({"declared__exact"})  # people write schedules: they are few
    large = payload = ("task_data",)
    payload_permission = "leasing_tasks.view_payload"
    list_page = "leasing_tasks:schedules"
    labels: ClassVar = {"declared_at": "last declared"}
    acts = tuple(SCHEDULE_ACTIONS.values())
    fields = (*EDITED, "badge", "why", "moments", "declared", "declared_at", "created_at")
    readonly_fields = (*fields[len(EDITED) :], "shown_task_data")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(now=DbNow())
        return rows

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return no fields of state for a row that does not exist yet: it was made at no time."""
        return EDITED if obj is None else super().get_fields(request, obj)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the data masked for users who cannot change it; those who can have to see it."""
        sets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return sets
        swap = {"task_data": "shown_task_data"}
        return [
            (t, o | {"fields": [swap.get(name, name) for name in o["fields"]]}) for t, o in sets
        ]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not is_read_only() and admin.ModelAdmin.has_add_permission(self, request)

    def has_change_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        if is_read_only() or (obj and obj.declared):
            return False
        return admin.ModelAdmin.has_change_permission(self, request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        if is_read_only():
            return False
        # Code that runs would only declare it again.
        is_living = obj is not None and obj.declared and not is_orphaned(obj, _now())
        return not is_living and admin.ModelAdmin.has_delete_permission(self, request, obj)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """The schedules alone: their slots go with them, and may be very many."""
        refused = {"schedule" for each in objs if not self.has_delete_permission(request, each)}
        return [str(each) for each in objs], {"schedules": len(objs)}, refused, []

    def save_model(
        self, request: HttpRequest, obj: Schedule, form: forms.ModelForm[Schedule], change: bool
    ) -> None:
        """Store what the form changed, and nothing that a scheduler may have moved meanwhile."""
        changed = set(form.changed_data)
        if not change or changed & set(RULE):
            obj.next_at = obj.rule.first(_now())
            changed.add("next_at")
        if not change:
            obj.save(using=leasing_settings.DATABASE)
            _note(request, "add", [obj])
        elif changed:
            obj.save(update_fields=changed)
            _note(request, "change", [obj])

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        _note(request, "delete", [obj])
        obj.delete()

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        _note(request, "delete", list(queryset))
        queryset.delete()

    def links(self, request: HttpRequest, schedule: Any) -> list[SafeString | str]:
        of_schedule = {"schedule__id__exact": schedule.pk}
        return [
            related(request, "Enqueued tasks", ScheduleSlot, of_schedule),
            related(request, "Queue", Queue, {"q": schedule.queue}) if schedule.queue else "",
        ]

    when = column("when", lambda schedule: short(_status(schedule).rule))
    badge = badge_column(lambda schedule: _status(schedule).badge)
    why = column("why", lambda schedule: _status(schedule).why or "–")
    shown_task_data = json_column("task_data", "arguments")
    moments = column(
        "next due times",
        lambda schedule: format_html_join(
            "", "{}<br>", ((stamp(each),) for each in _status(schedule).upcoming)
        ),
    )


@admin.register(ScheduleSlot)
class ScheduleSlotAdmin(ReadOnlyAdmin):
    list_display = ("at", "of_schedule", "of_task", "skipped", "run_by")
    list_filter = ("skipped",)
    list_select_related = ("schedule",)
    large = ("schedule__task_data",)
    exact_search = ("id",)
    search_help_text = "ID of a slot"
    #: An index serves each of them.
    indexed_filters = frozenset({"schedule__id__exact", "task__id__exact"})
    fields = ("of_schedule", "at", "of_task", "skipped", "run_by", "enqueued_at")

    of_schedule = column(
        "schedule",
        lambda slot: link(
            short(slot.schedule.name), "admin:leasing_tasks_schedule_change", slot.schedule_id
        ),
    )
    of_task = column("task", lambda slot: task_of(slot) if slot.task_id else "–")


def _status(schedule: Schedule) -> ScheduleStatus:
    now: datetime | None = getattr(schedule, "now", None)
    return status_of(schedule, now) if now else ScheduleStatus(ACTIVE)


def _note(request: HttpRequest, verb: str, rows: list[Schedule]) -> None:
    """Note what the forms of the admin do, by name too: in the transaction in which they do it."""
    user: Any = request.user
    names = {row.pk: row.name for row in rows}
    audit.record(
        user, verb, Schedule, keys=list(names), names=names, changed=len(rows), via="admin"
    )


def _now() -> datetime:
    return database_now(leasing_settings.DATABASE)
