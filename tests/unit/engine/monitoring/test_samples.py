from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from arborcast.core.telemetry.metrics import Registry, merged
from arborcast.engine.monitoring.history import MetricsHistory, files_in, read_downsampled, read_history
from arborcast.engine.monitoring.samples import (
    NO_BOUND,
    JvmSample,
    MetricsSample,
    ProcessFigures,
    Scrape,
    downsampled,
    grown,
    grown_buckets,
    quantile,
    quantiles,
    rates,
    sample_of,
    shares,
)


def test_metrics_of_a_registry_are_parsed() -> None:
    texts = {}
    for worker, count in (("0", 3), ("1", 4)):
        registry = Registry()
        registry.counter("arborcast_gateway_accepted_total", "A.").add(by=count)
        registry.counter("arborcast_gateway_refused_total", "R.", ("reason",)).add('odd "\\\n', by=count)
        registry.histogram("arborcast_gateway_append_seconds", "S.").observe(0.004)
        texts[worker] = registry.text()
    readings = Scrape.of(merged(texts, "worker"))
    assert readings.sum("arborcast_gateway_accepted_total") == 7
    assert readings.sum("arborcast_gateway_accepted_total", worker="1") == 4
    assert readings.by("arborcast_gateway_refused_total", "reason") == {'odd "\\\n': 7}
    buckets = readings.buckets("arborcast_gateway_append_seconds")
    assert buckets[0] == (0.001, 0.0)
    assert dict(buckets)[0.005] == 2
    assert buckets[-1] == (NO_BOUND, 2.0)
    assert readings.sum("nobody") == readings.most("nobody") == 0
    assert readings.buckets("nobody") == ()


@pytest.mark.parametrize("odd", ["\x85", "\u2028", "\x0b", "\x1c", "\r"])
def test_a_label_cannot_make_a_line(odd: str) -> None:
    """These end a line for Python's splitlines, but not in the format of Prometheus."""
    registry = Registry()
    registry.counter("pushes_total", "Pushes.", ("endpoint",)).add(f"http://e/{odd}pushes_total 1000 {odd}")

    assert Scrape.of(registry.text()).sum("pushes_total") == 1
    assert Scrape.of(merged({"one": registry.text()}, "worker")).sum("pushes_total", worker="one") == 1


def test_a_sample_of_a_scrape() -> None:
    text = """
arborcast_gateway_accepted_total{worker="0"} 5
arborcast_attempts_total{state="delivered",error=""} 7
arborcast_attempts_total{state="parked",error="timeout"} 2
arborcast_dispatch_lag_records{query="push"} 9
arborcast_dispatch_lag_records{query="record"} 100
arborcast_subscriptions{worker="0"} 3
arborcast_subscriptions{worker="1"} 3
arborcast_suspended_subscriptions{worker="1"} 2
arborcast_part_ready{part="kafka"} 0
arborcast_pushes_in_flight{by="batch"} 40
arborcast_pushes_in_flight{by="redelivery"} 2
arborcast_process_cpu_seconds_total{process="kafka"} 1.5
arborcast_process_threads{process="kafka"} 70
"""
    sample = sample_of(100.0, Scrape.of(text))
    assert (sample.accepted, sample.lag_records, sample.subscriptions, sample.suspended) == (5, 9, 3, 2)
    assert (sample.attempts, sample.errors) == ({"delivered": 7, "parked": 2}, {"timeout": 2})
    assert (sample.parts, sample.in_flight) == ({"kafka": False}, {"batch": 40, "redelivery": 2})
    assert sample.processes == {"kafka": ProcessFigures(1.5, 0, 70, 0)}


def test_rates_of_counters_with_resets_or_steps() -> None:
    assert (grown(10, 15), grown(10, 3)) == (5, 3)
    samples = [MetricsSample(0, accepted=100), MetricsSample(10, accepted=150), MetricsSample(20, accepted=20)]
    assert rates(samples, "accepted") == [None, 5.0, 2.0]
    assert rates([], "accepted") == []
    both = [MetricsSample(0, attempts={"delivered": 1}), MetricsSample(2, attempts={"delivered": 5, "dead": 2})]
    assert (rates(both, "attempts"), rates(both, "attempts", "dead")) == ([None, 3.0], [None, 1.0])
    # Outcomes are counted about every five seconds, and sampled every five: some samples have two steps, some none.
    counted = [0, 100, 100, 300, 300, 400, 600, 600, 700, 900, 900, 1_000, 1_200, 1_200, 1_300]
    steps = [MetricsSample(at=5.0 * number, attempts={"delivered": count}) for number, count in enumerate(counted)]
    jumping = [each for each in rates(steps, "attempts", "delivered")[7:] if each is not None]
    steady = [each for each in rates(steps, "attempts", "delivered", 30.0)[7:] if each is not None]
    assert (min(jumping), max(jumping)) == (0.0, 40.0)
    assert 16.0 < min(steady) <= max(steady) < 24.0


def test_quantiles_of_the_growth_between_samples() -> None:
    before = ((0.01, 10.0), (0.1, 10.0), (NO_BOUND, 10.0))
    after = ((0.01, 10.0), (0.1, 110.0), (NO_BOUND, 110.0))
    between = grown_buckets(before, after)
    assert between == ((0.01, 0.0), (0.1, 100.0), (NO_BOUND, 100.0))
    assert quantile(between, 0.5) == pytest.approx(0.055)
    assert quantile(((0.1, 0.0), (NO_BOUND, 5.0)), 0.99) == 0.1
    assert quantile(((0.1, 0.0), (NO_BOUND, 0.0)), 0.5) is None
    assert quantile((), 0.5) is None
    # The counters of a restarted job start at zero.
    assert grown_buckets(after, before) == before
    samples = [MetricsSample(0, delivery=before), MetricsSample(5, delivery=after), MetricsSample(10, delivery=after)]
    assert quantiles(samples, "delivery", 0.5) == [None, pytest.approx(0.055), None]


def test_a_history_is_bounded_over_restarts_and_clock_changes(tmp_path: Path) -> None:
    def add(folder: str, *moments: int) -> MetricsHistory:
        history = MetricsHistory(tmp_path / folder, keep_s=60)
        for at in moments:
            history.add(MetricsSample(float(at)))
        return history

    add("a", *range(100))
    assert len(add("a", *range(100, 300)).recent()) == 200
    kept = [sample.at for sample in read_history(tmp_path / "a")]
    assert kept == list(range(int(kept[0]), 300))
    assert 60 <= 299 - kept[0] <= 130
    day = 86_400
    assert [each.at for each in add("b", day, *range(100)).recent()] == list(range(100))
    # After a restart the first sample's time is that of the file.
    add("b", *range(100, 200))
    stored = [sample.at for sample in read_history(tmp_path / "b")]
    assert {*stored} <= {*range(200)}
    assert len(stored) <= 2 * 62


def test_a_torn_line_or_unwritable_folder_loses_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    MetricsHistory(tmp_path, keep_s=100).add(MetricsSample(1))
    current, _ = files_in(tmp_path)
    with current.open("ab") as stream:
        stream.write(b'{"at": 2, "acc')
    MetricsHistory(tmp_path, keep_s=100).add(MetricsSample(3))
    assert [sample.at for sample in read_history(tmp_path)] == [1, 3]
    (tmp_path / "metrics").write_text("a file where the folder should be")
    history = MetricsHistory(tmp_path / "metrics", keep_s=100)
    for at in (1, 2):
        history.add(MetricsSample(at))
    assert (len(caplog.records), len(history.recent())) == (1, 2)
    (tmp_path / "metrics").unlink()
    history.add(MetricsSample(3))
    shutil.rmtree(tmp_path / "metrics")
    for at in (4, 5):
        history.add(MetricsSample(at))
    assert [sample.at for sample in read_history(history.folder)] == [5], "the folder was deleted"


def test_a_long_history_is_thinned_during_the_reading(tmp_path: Path) -> None:
    history = MetricsHistory(tmp_path, keep_s=500)
    for number in range(200):
        history.add(MetricsSample(at=float(number * 5), accepted=float(number)))
    current, older = files_in(tmp_path)
    assert older.exists()
    with current.open("ab") as stream:
        stream.write(b'{"at":996.0,"accep\n{"accepted":3,"at":997.0}\nnothing\n')
    found = read_downsampled(tmp_path, 100.0, 1_100.0, 10)
    # The last readable one of each hundred seconds.
    assert [sample.at for sample in found] == [195, 295, 395, 495, 595, 695, 795, 895, 995]
    assert [sample.accepted for sample in found][:2] == [39, 59]
    assert read_downsampled(tmp_path / "nothing", 0, 1, 10) == []


def test_a_long_history_is_read_in_bounded_memory(tmp_path: Path) -> None:
    history = MetricsHistory(tmp_path, keep_s=1e9)
    for number in range(100):
        history.add(MetricsSample(at=number * 5.0, accepted=float(number), lag_seconds=9.0 * (number == 33)))
    found = read_history(tmp_path, most=16)
    assert [sample.at for sample in found] == [*range(35, 490, 40), 495]
    assert (found[-1].accepted, found[0].lag_seconds, found[4].lag_seconds) == (99, 0, 9)
    assert [sample.at for sample in read_history(tmp_path, 450.0, 16)] == [*range(450, 500, 5)]


def test_the_share_of_time_spent_collecting_garbage() -> None:
    moments = [
        MetricsSample(at=at, jvms={"kafka": JvmSample(1, 1, 1, 1, spent, 1, 1)} if spent is not None else {})
        for at, spent in ((0.0, 1.0), (10.0, 2.0), (20.0, None), (30.0, 0.5), (40.0, 1.0))
    ]
    assert shares(moments, "jvms", "collecting_s", "kafka") == [None, 0.1, None, None, 0.05]


def test_thinning_keeps_peaks(tmp_path: Path) -> None:
    samples = [MetricsSample(at=float(at), waiting={"parked": 3.0}) for at in range(100)]
    samples[42] = MetricsSample(
        at=42.0, lag_seconds=9.0, lag_records=7.0, waiting={"due": 5.0}, in_flight={"batch": 2.0}
    )
    history = MetricsHistory(tmp_path, 10_000)
    for sample in samples:
        history.add(sample)
    for kept in (downsampled(samples, 10), read_downsampled(tmp_path, 0.0, 100.0, 10)):
        (peak,) = [each for each in kept if each.lag_seconds]
        assert (peak.at, peak.lag_seconds, peak.lag_records) == (49.0, 9.0, 7.0)
        assert (peak.waiting, peak.in_flight) == ({"parked": 3.0, "due": 5.0}, {"batch": 2.0})
        assert len(kept) == 10
