from __future__ import annotations

from arborcast.core.telemetry.metrics import Labels, Registry, merged


def test_the_text_that_prometheus_reads() -> None:
    registry = Registry()
    requests = registry.counter("requests_total", "Requests.", ("operation", "status"))
    registry.counter("plain_total", "Plain.")
    registry.gauge("bytes", "Bytes.", lambda: 1_763_683_200.25)
    registry.counted("seconds_total", "Seconds.", lambda: 1.5)
    states: dict[Labels, float] = {("open",): 2.0, ("closed",): 1.0}
    registry.gauges("breakers", "Breakers.", ("state",), lambda: states)
    requests.add("Notify", "202")
    requests.add("Notify", "202", by=2)
    requests.add('say "hi"\\\n', "500")
    assert registry.text().splitlines() == [
        "# HELP requests_total Requests.",
        "# TYPE requests_total counter",
        'requests_total{operation="Notify",status="202"} 3',
        'requests_total{operation="say \\"hi\\"\\\\\\n",status="500"} 1',
        "# HELP plain_total Plain.",
        "# TYPE plain_total counter",
        "plain_total 0",
        "# HELP bytes Bytes.",
        "# TYPE bytes gauge",
        "bytes 1763683200.25",
        "# HELP seconds_total Seconds.",
        "# TYPE seconds_total counter",
        "seconds_total 1.5",
        "# HELP breakers Breakers.",
        "# TYPE breakers gauge",
        'breakers{state="closed"} 1.0',
        'breakers{state="open"} 2.0',
    ]
    del states["open",]
    assert 'state="open"' not in registry.text(), "readings are current"


def test_a_histogram_counts_up_to_and_including_its_bounds() -> None:
    registry = Registry()
    default, own = registry.histogram("d", "D."), registry.histogram("s", "S.", ("stage",), buckets=(1, 10))
    for seconds in (0.0005, 0.001, 0.0011, 60):
        default.observe(seconds)
    own.observe(5, "job", count=3)
    lines = registry.text().splitlines()
    assert [each for each in lines if 'le="0.00' in each or "Inf" in each][:3] == [
        'd_bucket{le="0.001"} 2',
        'd_bucket{le="0.0025"} 3',
        'd_bucket{le="0.005"} 3',
    ]
    assert {'d_bucket{le="+Inf"} 4', "d_count 4"} <= {*lines}
    assert lines[-5:] == [
        's_bucket{stage="job",le="1"} 0',
        's_bucket{stage="job",le="10"} 3',
        's_bucket{stage="job",le="+Inf"} 3',
        's_sum{stage="job"} 15.000000',
        's_count{stage="job"} 3',
    ]


def test_the_metrics_of_several_processes_have_labels() -> None:
    texts = {}
    for name, count in (("0", 3), ("1", 4)):
        registry = Registry()
        registry.counter("requests_total", "Requests.", ("status",)).add("200", by=count)
        registry.gauge("ready", "1 when ready.", lambda: 1)
        texts[name] = registry.text()
    assert merged(texts, "worker").splitlines() == [
        "# HELP requests_total Requests.",
        "# TYPE requests_total counter",
        'requests_total{worker="0",status="200"} 3',
        'requests_total{worker="1",status="200"} 4',
        "# HELP ready 1 when ready.",
        "# TYPE ready gauge",
        'ready{worker="0"} 1',
        'ready{worker="1"} 1',
    ]
