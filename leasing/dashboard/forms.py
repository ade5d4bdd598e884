"""One form for each verb and each list."""

from __future__ import annotations

from typing import Any

from django import forms
from django.forms.fields import InvalidJSONInput

from leasing.models import MAX_KEY, MAX_LABEL, LeaseState
from leasing.runtime.terminal import label
from leasing.web.cursors import Cursor, InvalidCursor

REASON_LENGTH = 500


class CursorField(forms.CharField):
    """The place in a list, as ``Cursor.encode`` wrote it."""

    default_error_messages = {
        "invalid": "This link points to no page of this list. Start at the first page."
    }

    def clean(self, value: Any) -> Cursor | None:
        text = super().clean(value)
        if not text:
            return None
        try:
            return Cursor.decode(text)
        except InvalidCursor as error:
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid") from error


class JSONField(forms.JSONField):
    """Django's. What Python's parser refuses otherwise than as no JSON (numbers of 5,000 digits,
    deep nesting) is no JSON either."""

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except (ValueError, RecursionError) as error:
            text = {"value": value}
            raise forms.ValidationError(self.error_messages["invalid"], "invalid", text) from error

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return super().bound_data(data, initial)
        except (ValueError, RecursionError):
            return InvalidJSONInput(data)


class LeaseFilter(forms.Form):
    """Choose the leases to list. ``state=renewed`` is every state with ``renewed`` ticked: renewed
    is a property apart from the state and combines with each."""

    ALL, RENEWED = "all", "renewed"
    STATES = (
        (ALL, "All"),
        (LeaseState.ACTIVE.value, "Active"),
        (LeaseState.EXPIRED.value, "Expired"),
        (LeaseState.RELEASED.value, "Released"),
        (LeaseState.FREE.value, "Never held"),
    )

    state = forms.ChoiceField(
        choices=(*STATES, (RENEWED, "Renewed")),
        required=False,
        error_messages={
            "invalid_choice": "Unknown state “%(value)s”. "
            "Choose active, expired, released, free or renewed."
        },
    )
    renewed = forms.BooleanField(required=False)
    q = forms.CharField(max_length=200, required=False, label="Name")
    at = CursorField(required=False)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("state") == self.RENEWED:
            cleaned |= {"state": self.ALL, "renewed": True}
        elif cleaned.get("state") == "":
            cleaned["state"] = self.ALL
        return cleaned


class StoreFilter(forms.Form):
    """Choose the store whose leases to list, and the beginning of their names."""

    store = forms.CharField(max_length=200, required=False)
    q = forms.CharField(max_length=200, required=False, label="Name")


class EventsFilter(forms.Form):
    """Choose the events of a lease to list."""

    at = CursorField(required=False)


class AuditFilter(forms.Form):
    """Choose the entries of the audit to list: by actor, verb, model and row."""

    by = forms.CharField(max_length=200, required=False)
    verb = forms.CharField(max_length=50, required=False)
    model = forms.CharField(max_length=MAX_LABEL, required=False)
    key = forms.CharField(max_length=MAX_KEY, required=False)
    at = CursorField(required=False)


class ReasonForm(forms.Form):
    """Why an operator does something; the ledger keeps it."""

    reason = forms.CharField(
        max_length=REASON_LENGTH,
        required=False,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


class RevokeForm(ReasonForm):
    """Take something from its holder."""

    reason = forms.CharField(
        max_length=REASON_LENGTH,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
        help_text="Stored with the lease's events, together with your name.",
        error_messages={"required": "Give a reason: the next operator sees it."},
    )


class SettleForm(ReasonForm):
    """Give a key of ``once`` a result."""

    field_order = ("result", "reason")

    result = JSONField(
        required=False,
        label="Result (JSON)",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
        help_text='What calls with this key get, such as {"receipt": 7}. Empty: null.',
        error_messages={"invalid": "Not valid JSON."},
    )
    reason = forms.CharField(
        max_length=REASON_LENGTH,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
        help_text="Stored in the audit, together with your name.",
        error_messages={"required": "Give a reason: how do you know that it was done?"},
    )


class ForceReleaseForm(RevokeForm):
    """Take a lease from its holder. The operator types its name, and so takes no other by mistake.

    Args:
        name: The name that has to be typed: "task:17" where this is the resource of a task.
        args: Arguments of the form.
        kwargs: Keyword arguments of the form.
    """

    typed = forms.CharField(
        max_length=250,
        strip=True,
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
        error_messages={"required": "Type the name to confirm."},
    )

    #: The error of another text.
    mismatch = "This is not the name."

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._name = label(name)
        self.fields["typed"].label = f"Type {self._name} to confirm"

    def clean_typed(self) -> str:
        typed: str = self.cleaned_data["typed"]
        if typed != self._name:
            raise forms.ValidationError(self.mismatch, code="mismatch")
        return typed
