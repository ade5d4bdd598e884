"""One form for each verb and each list."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils import timezone

from leasing.dashboard.forms import (
    REASON_LENGTH,
    CursorField,
    JSONField,
    ReasonForm,
    RevokeForm,
)
from leasing.validation.values import check_moment
from tasks.bounds import PRIORITIES
from tasks.conf import task_settings
from tasks.dashboard.listing import STATES
from tasks.dashboard.reconciliation import LISTS
from tasks.models import Worker

_UNKNOWN_STATE = {"invalid_choice": "Unknown state “%(value)s”. Choose one of the tabs."}


class PageFilter(forms.Form):
    """Choose the page of a list."""

    at = CursorField(required=False)


class StateFilter(PageFilter):
    """Rows in one state, a page of them. The first of ``STATES`` is the default."""

    STATES: tuple[tuple[str, str], ...] = ()

    state = forms.ChoiceField(required=False, error_messages=_UNKNOWN_STATE)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["state"].choices = self.STATES  # type: ignore[attr-defined]

    def clean_state(self) -> str:
        return self.cleaned_data["state"] or self.STATES[0][0]


class KeyFilter(StateFilter):
    """Choose keys by the finding of the reconciliation, or one key."""

    STATES = tuple((name, name.replace("_", " ").capitalize()) for name in LISTS)

    q = forms.CharField(max_length=200, required=False, label="Key")


class MomentField(forms.DateTimeField):
    """A moment in the current time zone, in the format of the browser's own field."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.widget.format = "%Y-%m-%dT%H:%M:%S"
        self.error_messages["invalid"] = "Not a valid time. Use the form 2030-01-31T18:30."

    def to_python(self, value: Any) -> Any:
        try:
            moment = super().to_python(value)
            return moment and check_moment(moment, "It")
        except (ValueError, OverflowError) as error:  # beyond the calendar, here or elsewhere
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid") from error


class DataField(JSONField):
    """Keyword arguments as JSON; none if the field is empty."""

    def to_python(self, value: Any) -> Any:
        data = super().to_python(value)
        return {} if data is None else data


class TaskSearch(PageFilter):
    """Search for tasks: see ``tasks.dashboard.listing``."""

    q = forms.CharField(max_length=200, required=False, label="ID or start of name")
    name = forms.CharField(max_length=200, required=False, label="Exact name or alias")
    queue = forms.CharField(max_length=200, required=False)
    key = forms.CharField(max_length=200, required=False, label="Concurrency key")
    holder = forms.CharField(max_length=200, required=False, label="Worker (current or last)")
    since = MomentField(required=False, label="Enqueued from")
    until = MomentField(required=False, label="Enqueued before")

    def clean(self) -> dict[str, Any]:
        """Add ``holders``, the names that ``holder`` means, which every tab of a list uses."""
        filters = self.cleaned_data
        holders: list[str] = []
        if name := filters.get("holder"):
            holders = [name, *Worker.objects.home().called(name).values_list("name", flat=True)]
        return {**filters, "holders": holders}


class TaskFilter(StateFilter, TaskSearch):
    """Choose the tasks to list."""

    STATES = tuple((state.name, state.label) for state in STATES.values())


class WorkerFilter(StateFilter):
    """Choose the workers to list."""

    STATES = (("present", "Running"), ("gone", "Gone"), ("stopped", "Stopped"))


class OverviewForm(forms.Form):
    """Choose the span of the charts."""

    DEFAULT = "10m"
    SPANS = (("10m", "10 min"), ("1h", "1 h"), ("6h", "6 h"), ("24h", "24 h"))

    span = forms.ChoiceField(
        choices=SPANS,
        required=False,
        error_messages={
            "invalid_choice": "Unknown time range “%(value)s”. Choose 10m, 1h, 6h or 24h."
        },
    )

    def clean_span(self) -> str:
        return self.cleaned_data["span"] or self.DEFAULT


class PauseForm(RevokeForm):
    """Pause a queue, so that none of its tasks is claimed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].help_text = "Shown on every task waiting in the queue."


class QueueForm(forms.Form):
    """Name a queue; nothing is stripped from the name."""

    queue = forms.CharField(max_length=200, strip=False, widget=forms.HiddenInput)


class PauseQueueForm(PauseForm, QueueForm):
    """Pause the queue that it names, which may have no row yet."""


class CancelForm(ReasonForm):
    """Cancel a task, or ask its holder to."""

    reason = forms.CharField(
        max_length=REASON_LENGTH,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
        help_text="Stored with the task, together with your name.",
        error_messages={"required": "Give a reason: the next operator sees it."},
    )


class RescheduleForm(ReasonForm):
    """Move waiting tasks to another queue, time or priority."""

    queue = forms.ChoiceField(required=False, label="Queue")
    scheduled_at = MomentField(required=False, label="Not before")
    at_once = forms.BooleanField(required=False, label="As soon as possible")
    priority = forms.IntegerField(
        required=False,
        min_value=PRIORITIES[0],
        max_value=PRIORITIES[1],
        help_text="Higher goes first; unchanged if empty.",
    )
    field_order = ("queue", "scheduled_at", "at_once", "priority", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = [(name, name) for name in task_settings.QUEUES]
        self.fields["queue"].choices = [("", "unchanged"), *names]  # type: ignore[attr-defined]
        zone = timezone.get_current_timezone_name()
        self.fields["scheduled_at"].help_text = f"Time zone: {zone}."

    def clean(self) -> dict[str, Any]:
        fields = super().clean() or {}
        if fields.get("at_once") and fields.get("scheduled_at"):
            raise forms.ValidationError("Choose a time or “as soon as possible”, not both.")
        is_moved = any(fields.get(name) for name in ("queue", "scheduled_at", "at_once"))
        if not (self.errors or is_moved or fields["priority"] is not None):
            raise forms.ValidationError("Choose a queue, a time, or a priority.")
        return fields
