"""A backlog of the log, pushed by the engine and by a bare prototype in alternating rounds of one run.

The prototype is minimal: Spark reads the log in micro-batches, and `foreachPartition` posts each message with libcurl,
16 at a time, to one given address, without checks of answers, order, subscriptions or records. Both run all the time
with the same Spark settings and separate logs, and send one message per request.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark

from arborcast.core.eventlog.client import Admin
from arborcast.engine.install import java
from benchmarks.report import Report, cpu_with_children_s
from benchmarks.rig import Rig, payload, rig
from tests.support.dispatch_process import ROOT

_LOG = "prototype"

# The engine has one push of a topic in flight, to keep the order: with few topics it would wait for answers.
_TOPICS = 64


def beside_prototype(report: Report) -> None:
    count, rounds = (2_000, 1) if report.quick else (20_000, 5)
    for mode in ("batch", "auto"):
        _compare(report, mode, count, rounds)


def _compare(report: Report, mode: str, count: int, rounds: int) -> None:
    with rig({"dispatch.mode": mode}) as bench:
        paths = {"engine": bench.subscribe(["engine"], form="raw"), _LOG: [f"/{_LOG}"]}
        admin = Admin(bench.kafka)
        admin.create_topics({_LOG: (bench.kafka.partitions, 1, {})})
        admin.close()
        with _prototype(bench) as prototype:
            roots = {"engine": bench.processes()["jvm"][0], _LOG: prototype}
            found: dict[str, list[tuple[float, float]]] = {"engine": [], _LOG: []}
            for number in range(rounds + 1):
                for what, results in found.items():
                    bench.receiver.clear()
                    before = _cpu(roots[what])
                    outcome = bench.delivered(_append(bench, what, f"r{number}", count), paths[what], _TOPICS)
                    assert not outcome.lost, f"{outcome.lost} lost by {what}"
                    if number:  # the first warms up
                        results.append((outcome.per_second, (_cpu(roots[what]) - before) / count * 1e6))
            _show(report, mode, found, count, rounds)


def _show(report: Report, mode: str, found: dict[str, list[tuple[float, float]]], count: int, rounds: int) -> None:
    columns = ("what", "pushes/s", "CPU us each", "times the prototype's pushes/s", "times its CPU")
    note = f"medians of {rounds} rounds of {count:,} messages, taken in turns; CPU of Spark and its Python"
    with report.table(f"A backlog, one message per request, mode {mode}", *columns, note=note) as table:
        for what, results in found.items():
            pairs = list(zip(results, found[_LOG], strict=True))
            table.add(
                what,
                statistics.median(rate for rate, _ in results),
                statistics.median(cpu for _, cpu in results),
                statistics.median(own[0] / other[0] for own, other in pairs),
                statistics.median(own[1] / other[1] for own, other in pairs),
            )


def _append(bench: Rig, what: str, label: str, count: int) -> dict[str, float]:
    if what == "engine":
        return bench.append(label, count, _TOPICS)
    return bench.append_encoded(_LOG, lambda _, mark: (mark.encode(), payload(mark)), label, count)


def _cpu(root: psutil.Process) -> float:
    """The CPU time of a JVM and its descendants; ended ones are in the times of their parents."""
    return cpu_with_children_s([root, *root.children(recursive=True)])


@contextmanager
def _prototype(bench: Rig) -> Iterator[psutil.Process]:
    """The prototype's JVM, once it has pushed something; below it are its driver, and Python's daemon and workers."""
    assert bench.job is not None
    properties = bench.job.home / "spark.properties"
    environment = {
        **os.environ,
        "JAVA_HOME": str(java.find_java().executable.parent.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--properties-file", str(properties), __file__, bench.kafka.bootstrap_servers]
    command += [f"{bench.receiver.url}/{_LOG}", str(bench.job.home / "prototype")]
    with (bench.job.home / "prototype.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    parent = psutil.Process(process.pid)
    try:
        _append(bench, _LOG, "first", 1)
        assert bench.receiver.arrivals(1, 300), (bench.job.home / "prototype.log").read_text()[-3_000:]
        yield parent
    finally:
        for each in [*parent.children(recursive=True), parent]:
            each.kill()
        process.wait()


def _push(bootstrap_servers: str, url: str, checkpoints: str) -> None:
    """The prototype."""
    from pyspark.sql import SparkSession

    def post(rows: Iterable[Any]) -> None:
        import pycurl

        multi, free = pycurl.CurlMulti(), []
        for _ in range(16):
            handle = pycurl.Curl()
            handle.setopt(pycurl.URL, url)
            handle.setopt(pycurl.WRITEFUNCTION, len)
            free.append(handle)
        waiting, in_flight = iter(rows), 0
        while True:
            while free and (row := next(waiting, None)) is not None:
                handle = free.pop()
                name = f"Arborcast-Notification-Id: {row.key.decode()}"
                handle.setopt(pycurl.HTTPHEADER, ["Content-Type: text/xml", name])
                handle.setopt(pycurl.POSTFIELDS, bytes(row.value))
                multi.add_handle(handle)
                in_flight += 1
            if not in_flight:
                return
            multi.perform()
            _, answered, failed = multi.info_read()
            for handle in (*answered, *(each[0] for each in failed)):
                multi.remove_handle(handle)
                free.append(handle)
                in_flight -= 1
            if not answered and not failed:
                multi.select(1.0)

    spark = SparkSession.builder.getOrCreate()
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
    frame = reader.option("subscribe", _LOG).option("startingOffsets", "earliest").load()
    writer = frame.select("key", "value").writeStream.option("checkpointLocation", checkpoints)
    writer.foreachBatch(lambda batch, _: batch.foreachPartition(post)).start().awaitTermination()


if __name__ == "__main__":
    _push(*sys.argv[1:])
