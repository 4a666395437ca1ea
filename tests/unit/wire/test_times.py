from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.wire import times
from arborcast.wire.errors import UnacceptableTermination

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "granted"),
    [
        *((text, "2026-01-31T12:10:00Z") for text in ("PT600S", "PT10M", "PT0010M")),
        ("P1D", "2026-02-01T12:00:00Z"),
        ("P1DT1H1M1S", "2026-02-01T13:01:01Z"),
        ("P1M", "2026-02-28T12:00:00Z"),  # the last day of a shorter month
        ("P1Y1M", "2027-02-28T12:00:00Z"),
        ("PT0.001S", "2026-01-31T12:00:01Z"),  # never less than requested
        ("PT.5S", "2026-01-31T12:00:01Z"),
        ("  PT1S\n", "2026-01-31T12:00:01Z"),
        ("2026-02-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ("2026-02-01T00:00:00", "2026-02-01T00:00:00Z"),  # no zone is UTC
        ("2026-02-01T00:00:00.25Z", "2026-02-01T00:00:01Z"),
        ("2026-02-01T00:00:00+00:00", "2026-02-01T00:00:00Z"),
        ("2026-02-01T00:00:00+02:30", "2026-01-31T21:30:00Z"),
        ("2026-02-01T00:00:00-05:00", "2026-02-01T05:00:00Z"),
        ("2026-01-31T24:00:00Z", "2026-02-01T00:00:00Z"),
    ],
)
def test_granted_times(text: str, granted: str) -> None:
    moment = times.grant(text, NOW, initial=True)
    assert moment is not None
    assert times.written(moment) == granted


@pytest.mark.parametrize(
    "text",
    [
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59.9999999Z",  # .NET's DateTime.MaxValue in UTC, and DateTimeOffset.MaxValue
        "9999-12-31T23:59:59.9999999",  # without a zone, the usual form
        "9999-12-31T23:59:59.9999999+14:00",  # a local time in any zone
        "9999-12-31T23:59:59.9999999-12:00",
        "9999-12-31T22:59:59.9999999Z",  # converted to UTC by its sender
        "9999-12-31T24:00:00Z",
        "9999-12-31T00:00:00Z",  # the last day in databases
        "  9999-12-31T23:59:59Z\n",
    ],
)
def test_the_last_representable_day_means_no_end(text: str) -> None:
    assert times.grant(text, NOW, initial=True) is None


REFUSED = {
    "no duration": ["", "P", "PT", "P1DT", "PT1", "1H", "PT1.S", "-PT10M", "PT0S", "soon"],
    "no time": ["2026-01-31", "2026-02-30T00:00:00Z", "2026-02-01T25:00:00Z", "2026-02-01T24:00:01Z"],
    "no zone": ["2026-02-01T00:00:00+15:00", "9999-12-31T23:59:59+15:00"],
    "not in the future": ["2026-01-31T12:00:00Z", "2026-01-31T11:59:59Z"],
    "too late": ["99999-01-01T00:00:00Z", "P9999Y", "P999999999D", "PT999999999999S"],
    "at the end of time": ["9999-12-31T25:00:00Z", "9999-12-30T23:59:59Z"],
    "digits for int() only": [
        *("PT\u0661\u0660M", "PT\uff11\uff10M", "PT1.\u0665S", "P\u0661D", "\u0662\u0660\u0662\u0666-02-01T00:00:00Z"),
        *("2026-02-01T00:00:\uff10\uff10Z", "2026-02-01T00:00:00.\u0665Z", "2026-02-01T00:00:00+0\u0660:00"),
    ],
}


@pytest.mark.parametrize("texts", REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_the_earliest_grantable_time(texts: list[str]) -> None:
    for text in texts:
        for initial, kind in ((True, "InitialTermination"), (False, "Termination")):
            with pytest.raises(UnacceptableTermination) as caught:
                times.grant(text, NOW, initial=initial)
            assert (caught.value.fault, caught.value.minimum) == (f"Unacceptable{kind}TimeFault", NOW), text


@given(st.datetimes(datetime(2026, 2, 1), datetime(8999, 1, 1)))  # noqa: DTZ001  # zones are added below
def test_a_written_time_is_read_back_as_the_same_second(moment: datetime) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    assert times.grant(times.written(moment), NOW, initial=True) == moment
    assert times.to_ms(NOW + timedelta(milliseconds=1)) == 1_769_860_800_001
    assert times.from_ms(times.to_ms(moment)) == moment
