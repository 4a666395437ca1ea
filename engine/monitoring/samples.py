"""The engine's metrics: parsing of a scrape, compact samples of it, and rates between two samples. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: \d+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPE = re.compile(r"\\(.)")

NO_BOUND = 1e12
"""A histogram's infinite bound, which JSON cannot represent."""

Buckets = tuple[tuple[float, float], ...]
"""A histogram: pairs of upper bound in seconds and cumulative count, rising; the last bound is NO_BOUND."""


@dataclass(frozen=True)
class ScrapedValue:
    """One line of the Prometheus text format."""

    name: str
    labels: Mapping[str, str]
    value: float


class Scrape:
    """All samples of one or more scrapes."""

    def __init__(self, samples: Iterable[ScrapedValue] = ()) -> None:
        self._samples: dict[str, list[ScrapedValue]] = {}
        for sample in samples:
            self._samples.setdefault(sample.name, []).append(sample)

    @classmethod
    def of(cls, *texts: str) -> Scrape:
        """From texts; lines of another format are skipped."""
        return cls(sample for text in texts for line in text.split("\n") if (sample := read_line(line)))

    @property
    def names(self) -> set[str]:
        return set(self._samples)

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name with these labels; 0 without any."""
        return math.fsum(sample.value for sample in self._matching(name, labels))

    def most(self, name: str, **labels: str) -> float:
        """The largest of these samples; 0 without any."""
        return max((sample.value for sample in self._matching(name, labels)), default=0.0)

    def least(self, name: str) -> float | None:
        """The smallest of all samples of this name; None without any."""
        return min((sample.value for sample in self._matching(name, {})), default=None)

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sums for each value of a label."""
        sums: dict[str, float] = {}
        for sample in self._matching(name, labels):
            value = sample.labels.get(label, "")
            sums[value] = sums.get(value, 0.0) + sample.value
        return sums

    def buckets(self, name: str, **labels: str) -> Buckets:
        """A histogram, added up over all processes and other labels; empty without one."""
        sums = self.by(f"{name}_bucket", "le", **labels)
        return tuple(sorted((NO_BOUND if bound == "+Inf" else float(bound), sums[bound]) for bound in sums))

    def _matching(self, name: str, labels: Mapping[str, str]) -> list[ScrapedValue]:
        return [
            sample
            for sample in self._samples.get(name, ())
            if all(sample.labels.get(label) == value for label, value in labels.items())
        ]


def read_line(line: str) -> ScrapedValue | None:
    """A sample; None for a comment, an empty line, or an invalid line."""
    match = _SAMPLE.fullmatch(line.strip())
    if match is None or line.startswith("#"):
        return None
    name, labels, value = match.groups()
    try:
        number = float(value)
    except ValueError:
        return None
    return ScrapedValue(
        name, {key: _ESCAPE.sub(_unescaped, text) for key, text in _LABEL.findall(labels or "")}, number
    )


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n"}.get(match[1], match[1])


class ProcessFigures(msgspec.Struct, frozen=True):
    """Usage of a process, or the sum of several: CPU seconds since the start, and current memory."""

    cpu_seconds: float
    memory_bytes: float
    threads: float
    descriptors: float
    processes: float = 1


class JvmSample(msgspec.Struct, frozen=True):
    """Internal figures of a Java virtual machine; counters since its start are marked (+)."""

    heap_used: float
    heap_committed: float
    heap_max: float
    collections: float  # (+)
    collecting_s: float  # (+)
    classes: float
    threads: float


class MetricsSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures at `at` (seconds since the epoch). Counters since a process's start are marked (+)."""

    at: float
    parts: dict[str, bool] = {}
    accepted: float = 0  # (+) notifications
    notices: float = 0  # (+) notifications of the engine's own
    refused: dict[str, float] = {}  # (+) requests, by reason
    attempts: dict[str, float] = {}  # (+) by state
    errors: dict[str, float] = {}  # (+) by class of error
    pushes: float = 0  # (+)
    reused: float = 0  # (+) pushes over a reused connection
    stages: dict[str, float] = {}  # (+) seconds by stage
    append: Buckets = ()  # (+)
    delivery: Buckets = ()  # (+)
    push: Buckets = ()  # (+)
    mode: str = ""
    lag_records: float = 0
    lag_seconds: float = 0
    waiting: dict[str, float] = {}
    in_flight: dict[str, float] = {}  # pushes, by sender: batch or redelivery
    breakers: dict[str, float] = {}
    requests: dict[str, float] = {}  # of work queues, by state
    servers: dict[str, float] = {}  # of work queues, by state
    subscriptions: float = 0
    suspended: float = 0  # of the subscriptions
    processes: dict[str, ProcessFigures] = {}
    jvms: dict[str, JvmSample] = {}  # by part
    events: dict[str, float] = {}  # (+) rare ones, by name
    states: dict[str, float] = {}  # other values for alert rules, by name


def sample_of(at: float, readings: Scrape) -> MetricsSample:
    stages = readings.by("arborcast_dispatch_batch_seconds_sum", "stage")
    return MetricsSample(
        at=at,
        parts={part: value > 0 for part, value in readings.by("arborcast_part_ready", "part").items()},
        accepted=readings.sum("arborcast_gateway_accepted_total"),
        notices=readings.sum("arborcast_dispatch_system_notices_total"),
        refused=_refused(readings),
        attempts=readings.by("arborcast_attempts_total", "state"),
        errors={name: count for name, count in readings.by("arborcast_attempts_total", "error").items() if name},
        pushes=readings.sum("arborcast_push_seconds_count"),
        reused=readings.sum("arborcast_push_connections_total", connection="reused"),
        stages=stages,
        append=readings.buckets("arborcast_gateway_append_seconds"),
        delivery=readings.buckets("arborcast_delivery_seconds"),
        push=readings.buckets("arborcast_push_seconds"),
        mode=next((name for name, on in readings.by("arborcast_dispatch_mode", "mode").items() if on), ""),
        lag_records=readings.sum("arborcast_dispatch_lag_records", query="push"),
        lag_seconds=readings.most("arborcast_dispatch_lag_seconds", query="push"),
        waiting=readings.by("arborcast_deliveries_waiting", "kind"),
        in_flight=readings.by("arborcast_pushes_in_flight", "by"),
        breakers=readings.by("arborcast_endpoint_breakers", "state"),
        requests=readings.by("arborcast_queue_requests", "state"),
        servers=readings.by("arborcast_queue_servers", "state"),
        # Every gateway exports all of them.
        subscriptions=readings.most("arborcast_subscriptions"),
        suspended=readings.most("arborcast_suspended_subscriptions"),
        processes=_processes(readings),
        jvms=_jvms(readings),
        events={event: count for event, names in _EVENTS.items() if (count := sum(map(readings.sum, names)))},
        states=_states(readings),
    )


def _refused(readings: Scrape) -> dict[str, float]:
    listeners = [readings.by(f"arborcast_{listener}_refused_total", "reason") for listener in ("gateway", "framed")]
    return {
        reason: sum(each.get(reason, 0.0) for each in listeners) for reason in sorted({*listeners[0], *listeners[1]})
    }


_EVENTS = {
    "restart": ("arborcast_part_restarts_total",),
    "hang": ("arborcast_part_hangs_total",),
    "hung worker": ("arborcast_dispatch_hung_workers_total", "arborcast_gateway_hung_workers_total"),
    "no memory": ("arborcast_gateway_inflight_refused_total",),
    "failed batch": ("arborcast_dispatch_failed_batches_total",),
    "failed redelivery": ("arborcast_redelivery_failures_total",),
}


def _states(readings: Scrape) -> dict[str, float]:
    """Without those that are 0 in normal operation."""
    found = {
        "batch": readings.most("arborcast_dispatch_batch_under_way_seconds"),
        "record lag": max(
            readings.most("arborcast_tables_behind_seconds"),
            *(readings.most("arborcast_dispatch_lag_seconds", query=of) for of in ("record", "archive")),
        ),
        "pull dropped": readings.most("arborcast_pull_dropped_messages_total"),  # every gateway counts all of them
    }
    leads, mqtt = readings.sum("arborcast_gateway_lease_held") > 0, "arborcast_mqtt_connected"
    least = {
        "gateway": readings.least("arborcast_gateway_ready"),
        "disk free": readings.least("arborcast_disk_free_bytes"),
        "directory": readings.least("arborcast_directory_connected"),
        # 0 at gateways without the lease, which a gateway elsewhere may have.
        "mqtt": readings.most(mqtt) if leads and mqtt in readings.names else None,
        # Absent without a job.
        "job": float("arborcast_dispatch_batches_total" in readings.names),
    }
    found |= {f"burn {window}": rate for window, rate in readings.by("arborcast_slo_burn_rate", "window").items()}
    return {name: value for name, value in found.items() if value} | {
        name: value for name, value in least.items() if value is not None
    }


def _jvms(readings: Scrape) -> dict[str, JvmSample]:
    of = [
        readings.by(name, "component")
        for name in (
            "jvm_memory_used_bytes",
            "jvm_memory_committed_bytes",
            "jvm_memory_max_bytes",
            "jvm_gc_collection_seconds_count",
            "jvm_gc_collection_seconds_sum",
            "jvm_classes_currently_loaded",
            "jvm_threads_current",
        )
    ]
    return {name: JvmSample(*(known.get(name, 0.0) for known in of)) for name in of[0]}


def _processes(readings: Scrape) -> dict[str, ProcessFigures]:
    cpu = readings.by("arborcast_process_cpu_seconds_total", "process")
    if cpu:
        label = "process"
        names = ("arborcast_process_memory_bytes", "arborcast_process_threads", "arborcast_process_descriptors")
        counts = readings.by("arborcast_processes", label)
    else:
        # Without a supervisor, gateways and jobs report their own processes.
        label, counts = "component", {}
        cpu = readings.by("process_cpu_seconds_total", label)
        names = ("process_resident_memory_bytes", "process_threads", "process_open_fds")
    memory, threads, descriptors = (readings.by(name, label) for name in names)
    return {
        name: ProcessFigures(
            cpu[name], memory.get(name, 0.0), threads.get(name, 0.0), descriptors.get(name, 0.0), counts.get(name, 1.0)
        )
        for name in cpu
    }


def grown(before: float, after: float) -> float:
    """The growth of a counter; one that is smaller than before was reset."""
    return after - before if after >= before else after


def grown_buckets(before: Buckets, after: Buckets) -> Buckets:
    """The growth of a histogram's buckets between two samples."""
    earlier = dict(before)
    if not before or before[-1][1] > (after[-1][1] if after else 0):
        return after
    return tuple((bound, max(0.0, count - earlier.get(bound, 0.0))) for bound, count in after)


def quantile(buckets: Buckets, share: float) -> float | None:
    """The time in seconds within which this share of all observations was completed; None without any. Observations are
    assumed to be spread evenly in a bucket; those beyond the last finite bound count as that bound."""
    total = buckets[-1][1] if buckets else 0.0
    if not total:
        return None
    target = share * total
    lower, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= target:
            if bound >= NO_BOUND:
                return lower
            return lower + (bound - lower) * ((target - below) / (count - below) if count > below else 1.0)
        lower, below = bound, count
    return lower


def rates(samples: Sequence[MetricsSample], name: str, key: str = "", over_s: float = 0.0) -> list[float | None]:
    """The growth of a counter up to each sample, per second, over at least `over_s` as far as the samples allow; None
    for the first, and without elapsed time."""
    sums = _sums(samples, name, key)
    result: list[float | None] = [None]
    begin = 0
    for number in range(1, len(samples)):
        now = samples[number].at
        while begin + 1 < number and samples[begin + 1].at <= now - over_s:
            begin += 1
        seconds = now - samples[begin].at
        result.append((sums[number] - sums[begin]) / seconds if seconds > 0 else None)
    return result[: len(samples)]


def growth(samples: Sequence[MetricsSample], name: str, key: str = "") -> float:
    """The growth of a counter over all samples."""
    return _sums(samples, name, key)[-1] if samples else 0.0


def keys_of(samples: Sequence[MetricsSample], name: str) -> list[str]:
    """The keys of a figure in any sample: labels of a counter, processes, virtual machines."""
    return sorted({key for sample in samples for key in getattr(sample, name)})


def grown_histogram(samples: Sequence[MetricsSample], name: str) -> Buckets:
    """The growth of a histogram over all samples; a sample without it does not reset it."""
    sums: dict[float, float] = {}
    before: Buckets = getattr(samples[0], name)
    for sample in samples[1:]:
        if now := getattr(sample, name):
            for bound, count in grown_buckets(before, now):
                sums[bound] = sums.get(bound, 0.0) + count
            before = now
    return tuple(sorted(sums.items()))


def _sums(samples: Sequence[MetricsSample], name: str, key: str) -> list[float]:
    """The growth of a counter since the first sample. A sample without the counter (its process did not answer) does
    not reset it: the next sample continues from the last value."""
    sums, before = [0.0], _value(samples[0], name, key) if samples else 0.0
    for sample in samples[1:]:
        now = _value(sample, name, key)
        sums.append(sums[-1] + (grown(before, now) if now else 0.0))
        before = now or before
    return sums


def quantiles(samples: Sequence[MetricsSample], name: str, share: float) -> list[float | None]:
    """A quantile in seconds of the observations between each sample and the previous one with the histogram."""
    result: list[float | None] = [None]
    before: Buckets = getattr(samples[0], name) if samples else ()
    for sample in samples[1:]:
        now: Buckets = getattr(sample, name)
        result.append(quantile(grown_buckets(before, now), share) if now else None)
        before = now or before
    return result[: len(samples)]


def shares(samples: Sequence[MetricsSample], kind: str, counter: str, name: str) -> list[float | None]:
    """The growth of a counter of seconds of one of the `processes` or `jvms` up to each sample, per second."""
    spent = [getattr(getattr(sample, kind).get(name), counter, None) for sample in samples]
    result: list[float | None] = [None]
    for (earlier, then), (later, now) in itertools.pairwise(zip(samples, spent, strict=True)):
        seconds = later.at - earlier.at
        result.append(None if then is None or now is None or seconds <= 0 else grown(then, now) / seconds)
    return result[: len(samples)]


def downsampled(samples: Sequence[MetricsSample], most: int) -> list[MetricsSample]:
    """Up to `most` samples, evenly spaced, including the last. Counters lose nothing, peaks are kept."""
    if len(samples) <= most:
        return list(samples)
    step = len(samples) / most
    ends = [min(len(samples), math.ceil((number + 1) * step)) for number in range(most)]
    return [with_peaks(samples[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


class Peaks(msgspec.Struct, frozen=True):
    """The figures of a sample that rise and fall, and whose peaks count."""

    lag_records: float = 0
    lag_seconds: float = 0
    waiting: dict[str, float] = {}
    in_flight: dict[str, float] = {}

    def with_more(self, other: Peaks | MetricsSample) -> Peaks:
        """The larger value of each figure."""
        return Peaks(
            max(self.lag_records, other.lag_records),
            max(self.lag_seconds, other.lag_seconds),
            _larger(self.waiting, other.waiting),
            _larger(self.in_flight, other.in_flight),
        )

    def on(self, sample: MetricsSample) -> MetricsSample:
        """The sample with these figures."""
        return msgspec.structs.replace(sample, **msgspec.structs.asdict(self))


def with_peaks(period: Sequence[MetricsSample]) -> MetricsSample:
    """The last sample of a period, with the peaks of all of them."""
    peaks = Peaks()
    for sample in period:
        peaks = peaks.with_more(sample)
    return peaks.on(period[-1])


def _larger(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {key: max(one.get(key, 0.0), other.get(key, 0.0)) for key in {**one, **other}}


def _value(sample: MetricsSample, name: str, key: str) -> float:
    value = getattr(sample, name)
    if not isinstance(value, dict):
        return float(value)
    return float(value.get(key, 0.0)) if key else float(sum(value.values()))
