"""One form for each verb and each list."""

from __future__ import annotations

from typing import Any

from django import forms

from leasing.forms import REASON_LENGTH, CursorField, ReasonForm, RevokeForm

_UNKNOWN_STATE = {"invalid_choice": "There is no state “%(value)s”. Choose one of the tabs."}


class StateFilter(forms.Form):
    """Rows in one state, a page of them. The first of ``STATES`` is the default."""

    STATES: tuple[tuple[str, str], ...] = ()

    state = forms.ChoiceField(required=False, error_messages=_UNKNOWN_STATE)
    at = CursorField(required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["state"].choices = self.STATES  # type: ignore[attr-defined]

    def clean_state(self) -> str:
        return self.cleaned_data["state"] or self.STATES[0][0]


class TaskFilter(StateFilter):
    """Which tasks to list."""

    STATES = (
        ("all", "All"),
        ("ready", "Ready"),
        ("scheduled", "Scheduled"),
        ("running", "Running"),
        ("stuck", "Stuck"),
        ("succeeded", "Succeeded"),
        ("failed", "Failed"),
        ("cancelled", "Cancelled"),
    )

    q = forms.CharField(max_length=200, required=False, label="Name or id")


class WorkerFilter(StateFilter):
    """Which workers to list."""

    STATES = (("present", "Present"), ("gone", "Gone"), ("stopped", "Stopped"))


class OverviewForm(forms.Form):
    """How far back the charts look."""

    DEFAULT = "10m"
    SPANS = (("10m", "10 min"), ("1h", "1 h"), ("6h", "6 h"), ("24h", "24 h"))

    span = forms.ChoiceField(
        choices=SPANS,
        required=False,
        error_messages={
            "invalid_choice": "The charts look back 10m, 1h, 6h or 24h, not “%(value)s”."
        },
    )

    def clean_span(self) -> str:
        return self.cleaned_data["span"] or self.DEFAULT


class PageFilter(forms.Form):
    """Which page of a list that has no other choices."""

    at = CursorField(required=False)


class RetryForm(forms.Form):
    """Set a failed or cancelled task ready again. There is nothing to say about it."""


class QueueField(forms.CharField):
    """The name of a queue, as it is: nothing is stripped from it."""

    widget = forms.HiddenInput

    def __init__(self) -> None:
        super().__init__(max_length=200, strip=False)


class PauseForm(RevokeForm):
    """Let nothing of a queue be claimed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].help_text = "It is shown with every task that waits for the queue."


class ResumeForm(forms.Form):
    """Let the tasks of a queue be claimed again. There is nothing to say about it."""


class PauseQueueForm(PauseForm):
    """The same of the queue that it names, which may have no row yet."""

    queue = QueueField()


class ResumeQueueForm(ResumeForm):
    """The same of the queue that it names."""

    queue = QueueField()


class CancelForm(ReasonForm):
    """Cancel a task, or ask its holder to."""

    reason = forms.CharField(
        max_length=REASON_LENGTH,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
        help_text="It is kept with the task, beside your name.",
        error_messages={"required": "Say why: whoever looks at this next wants to know."},
    )


class StartGeneratorForm(ReasonForm):
    """Wish that tasks are generated."""


class StopGeneratorForm(ReasonForm):
    """Wish that no more tasks are generated."""
