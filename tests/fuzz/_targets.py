"""The targets of fuzzing by the names for `tests.fuzz.run`."""

from __future__ import annotations

from tests.fuzz import _checks_framed, _checks_http, _checks_records, _checks_texts, _checks_wire

TARGETS = (
    _checks_framed.TARGETS
    | _checks_http.TARGETS
    | _checks_wire.TARGETS
    | _checks_records.TARGETS
    | _checks_texts.TARGETS
)
