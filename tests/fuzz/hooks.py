"""What schemathesis has to know of the formats in the document; it loads this file by its name."""

from __future__ import annotations

from datetime import UTC, datetime

import schemathesis
from hypothesis import strategies as st

from leasing.validation.names import MAX_NAME
from tasks.conf import task_settings

#: Of several alphabets, with the one space that is printable.
_CHARACTERS = st.characters(codec="utf-8", categories=["L", "M", "N", "P", "S"]).filter(
    str.isprintable
)


def _is_name(text: str) -> bool:
    return text == text.strip() and text.isprintable()


schemathesis.openapi.format(
    "printable",
    st.text(st.one_of(_CHARACTERS, st.just(" ")), min_size=1, max_size=MAX_NAME).filter(_is_name),
)
schemathesis.openapi.format("queue", st.sampled_from(sorted(task_settings.QUEUES)))
schemathesis.openapi.format("handler", st.just("sample.sleep"))
schemathesis.openapi.format("idempotency-key", st.uuids().map(str))
schemathesis.openapi.format(
    "date-time",
    st.datetimes(datetime(1971, 1, 1), datetime(9997, 1, 1), timezones=st.timezones()).map(
        lambda moment: moment.astimezone(UTC).isoformat()
    ),
)
# The others are those of answers, which links bring.
schemathesis.openapi.format("cursor", st.just(""))
