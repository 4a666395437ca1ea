"""The streaming job on a standalone Spark cluster, started as in docs/cluster.md: bundled, with spark-submit.

The hosts' Python has the dependencies and no Arborcast: the code comes in the bundle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.matching.bases import MIN_OVERLAY
from arborcast.dispatch.operations.audit import Report, audit
from arborcast.dispatch.realtime.messages import read_progress
from arborcast.dispatch.realtime.mode_policy import WORTH_ELSEWHERE_S, Mode, ModePolicy
from tests.cluster.spark_cluster import SparkCluster, running_cluster
from tests.support.bare_python import bare_python
from tests.support.command import Engine
from tests.support.dispatch_job import logs, subscription
from tests.support.dispatch_process import Bundle, DispatchProcess, running_job
from tests.support.process import killed
from tests.support.receiver import Receiver
from tests.support.steady_load import PATHS, assert_all_arrived, counted, under_load, wait_for_more
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(900)]

FLAPPING = "/flapping"
BESIDE = "/beside"

# One topic is in one partition, and one partition is pushed by one executor. These are in both.
IN_BOTH_PARTITIONS = ("beside/a", "beside/b")

# The executors join the tables' files.
JOINED_BY_SPARK: dict[str, str | int | float] = {
    "tables.upkeep_by": "spark",
    "tables.upkeep_interval_s": 5,
    "tables.interval_s": 0.5,
}

# A receiver that is back is tried at once, so that the test need not wait.
SOON_AGAIN = {"retry.first_wait_s": 0.5, "retry.first_probe_s": 0.5, "retry.longest_probe_s": 1.0}

both_modes = pytest.mark.parametrize("mode", ["realtime", "batch"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_cluster(tmp_path_factory.mktemp("spark-cluster")) as running:
        yield running


def bundled(
    folder: Path, cluster: SparkCluster, settings: dict[str, str] | None = None, *, driver_too: bool = False
) -> Bundle:
    """The commands before the first spark-submit. `driver_too`: Arborcast is not installed on the driver's host
    either."""
    python = bare_python(folder / "python")
    out = folder / "bundle"
    driver = ["--driver-python", str(python)] if driver_too else []
    known = {"ARBORCAST_DISPATCH_SPARK_SECRET": cluster.secret}
    arguments = ["bundle", str(out), "--master", cluster.url, "--python", str(python), *driver]
    Engine(folder).run(*arguments, env=known if settings is None else settings)
    # Two executors beside a driver on a small machine.
    with (out / "spark.properties").open("a") as file:
        file.write("spark.executor.memory 512m\n")
    return Bundle(out / "dispatch_stream.py", out / "spark.properties", python)


@both_modes
def test_a_lost_executor_and_a_lost_worker_lose_nothing_and_reorder_nothing(
    tmp_path: Path, cluster: SparkCluster, kafka_settings: KafkaSettings, receiver: Receiver, mode: Mode
) -> None:
    bundle = bundled(tmp_path, cluster)
    more = JOINED_BY_SPARK if mode == "batch" else {}  # tasks in real time have all cores
    with (
        running_job(tmp_path, kafka_settings, {**SOON_AGAIN, **more, "dispatch.mode": mode}, bundle) as job,
        logs(kafka_settings) as log,
    ):
        log.subscribe(
            subscription(FLAPPING[1:], receiver.url(FLAPPING), "a//."),
            subscription(BESIDE[1:], receiver.url(BESIDE), "beside//."),
        )
        with under_load(kafka_settings, receiver, beside=IN_BOTH_PARTITIONS) as load:
            receiver.wait_for(100, timeout=180)
            wait_for_workers_of_both(cluster, receiver)
            assert_mode(job, kafka_settings, mode)
            assert_guarded(cluster)
            # Further messages for this one are parked and retried beside the batches, in order.
            receiver.behave(FLAPPING, "status/503")
            killed = cluster.executors()[0]
            killed.kill()
            wait_for_more(receiver, timeout=240)
            wait_for_executors(cluster, 2, without=killed.pid)
            # Where an earlier test has left a worker more than there are executors, one of them has none.
            lost = next(each for each in cluster.workers if each.executors())
            lost.kill()
            # Messages appended later can only be pushed by the other one.
            wait_for_more(receiver, timeout=240)
            time.sleep(2)
            assert running(job)
            cluster.add_worker()
            wait_for_executors(cluster, 2)
            receiver.behave(FLAPPING, "status/202")
            time.sleep(2)
            accepted = load.stop()
        assert_all_arrived(receiver, accepted, duplicates_allowed=800, timeout=300)
        assert_nothing_waits(kafka_settings, len(accepted))
        if more:
            wait_until(
                lambda: by_spark(job.home / "tables" / "attempts"), "Spark joined files of attempts", timeout_s=300
            )
        first_attempts = [name for name in counted(receiver, FLAPPING) if name in set(accepted)]
        assert first_attempts == accepted, "whatever the speed, first attempts leave in the order of acceptance"


def by_spark(table: Path) -> bool:
    """Whether Spark has committed to it."""
    return any('"engineInfo":"Apache-Spark' in each.read_text() for each in (table / "_delta_log").glob("*.json"))


def assert_mode(job: DispatchProcess, kafka: KafkaSettings, mode: Mode) -> None:
    """Since it was started."""
    assert bool(partitions_in_real_time(kafka)) == (mode == "realtime")
    assert "mode: batch" not in job.log(1_000_000)


def partitions_in_real_time(kafka: KafkaSettings) -> set[int]:
    """Partitions whose position a worker has written. In batches the driver writes it, as task -1."""
    return {number for number, progress in read_progress(kafka).items() if progress.task >= 0}


def assert_guarded(cluster: SparkCluster) -> None:
    """The executors connected with the secret, which no command line shows, and they encrypt."""
    for executor in cluster.executors():
        arguments = executor.cmdline()
        assert "-Dspark.authenticate=true" in arguments
        assert "-Dspark.network.crypto.enabled=true" in arguments
        assert "-Dspark.network.crypto.saslFallback=false" in arguments
        assert executor.environ()["_SPARK_AUTH_SECRET"] == cluster.secret
        assert not any(cluster.secret in each for each in arguments)


def assert_nothing_waits(kafka: KafkaSettings, accepted: int, more: int = 1, timeout: float = 300.0) -> None:
    """The deep audit: every delivery is complete, also for the flapping receiver."""

    def complete() -> Report | None:
        report = audit(kafka, 0, deep=True, patience_s=30)
        return None if report.totals.pending else report

    report = wait_until(complete, "deliveries are pending", timeout)
    assert report.balanced, report.problems[:5]
    # An unacknowledged notification may be in the log. An opened breaker is a notification without
    # recipients.
    assert report.totals.delivered == report.matches >= (len(PATHS) + more) * accepted


@pytest.mark.parametrize("how", ["dies", "stands-still"])
def test_a_worker_in_real_time_that_dies_or_stands_still_is_replaced(
    tmp_path: Path, cluster: SparkCluster, kafka_settings: KafkaSettings, receiver: Receiver, how: str
) -> None:
    """On another host the driver gets no more reports of it. A stopped worker may still make its pushes in flight
    when it is killed or continues."""
    bundle = bundled(tmp_path, cluster)
    with (
        running_job(tmp_path, kafka_settings, {"dispatch.mode": "realtime"}, bundle) as job,
        under_load(kafka_settings, receiver, beside=IN_BOTH_PARTITIONS) as load,
        logs(kafka_settings) as log,
    ):
        log.subscribe(subscription(BESIDE[1:], receiver.url(BESIDE), "beside//."))
        receiver.wait_for(100, timeout=180)
        wait_for_workers_of_both(cluster, receiver)
        for executor in cluster.executors():
            one = max((each for each in below(executor) if connected(each, receiver)), key=psutil.Process.create_time)
            one.kill() if how == "dies" else one.suspend()
            wait_until_begun_anew(job, kafka_settings)
            wait_for_more(receiver, timeout=240)
            wait_for_workers_of_both(cluster, receiver)
        assert running(job)
        accepted = load.stop()
        assert_all_arrived(receiver, accepted, duplicates_allowed=400, timeout=300)
        assert_nothing_waits(kafka_settings, len(accepted), more=0)


def wait_until_begun_anew(
    job: DispatchProcess, kafka: KafkaSettings, meanwhile: Callable[[], None] = lambda: None
) -> None:
    run = newest_run(kafka)

    def begun() -> bool:
        meanwhile()
        return newest_run(kafka) != run

    wait_until(begun, job.log, 500)


def newest_run(kafka: KafkaSettings) -> int:
    return max(each.run for each in read_progress(kafka).values())


def test_many_new_subscriptions_reach_workers_in_real_time(
    tmp_path: Path, cluster: SparkCluster, kafka_settings: KafkaSettings, receiver: Receiver
) -> None:
    """Enough of them that workers need another base, which a running task cannot load: a shift, without repetitions."""
    bundle = bundled(tmp_path, cluster)
    with (
        running_job(tmp_path, kafka_settings, {"dispatch.mode": "realtime"}, bundle) as job,
        under_load(kafka_settings, receiver, beside=IN_BOTH_PARTITIONS) as load,
        logs(kafka_settings) as log,
    ):
        receiver.wait_for(100, timeout=180)
        run, many = newest_run(kafka_settings), MIN_OVERLAY + 500
        log.subscribe(*(subscription(f"many{n}", receiver.url("/many"), f"many/t{n % 7}") for n in range(many)))

        def change() -> None:
            """Another base is made after 1,000 messages to the workers, which get 40 a second."""
            for _ in range(40):
                log.subscribe(subscription("more", receiver.url("/more"), "c"))
                time.sleep(0.03)

        wait_until_begun_anew(job, kafka_settings, change)
        log.accept("many/t3")
        expected = len(range(3, many, 7))
        receiver.wait_for(expected, "/many", timeout=240)
        accepted = load.stop()
        assert_all_arrived(receiver, accepted, duplicates_allowed=0, timeout=300)
        assert len(receiver.received("/many")) == expected
        assert newest_run(kafka_settings) > run
        assert_mode(job, kafka_settings, "realtime")


def test_a_cluster_with_too_few_slots_has_batches_until_there_are_more(
    tmp_path: Path, cluster: SparkCluster, kafka_settings: KafkaSettings, receiver: Receiver
) -> None:
    bundle = bundled(tmp_path, cluster)
    kafka = dataclasses.replace(kafka_settings, partitions=3)
    with (
        running_job(tmp_path, kafka, {"dispatch.mode": "realtime"}, bundle) as job,
        under_load(kafka, receiver) as load,
    ):
        wait_for_more(receiver, timeout=180)
        assert "mode: batch, until the cluster has a task slot (a core of an executor) for each of the 3" in job.log()
        assert not partitions_in_real_time(kafka)
        cluster.add_worker()
        wait_until(lambda: bool(partitions_in_real_time(kafka)), job.log)
        wait_for_more(receiver, timeout=180)
        accepted = load.stop()
        assert_all_arrived(receiver, accepted, duplicates_allowed=0, timeout=300)


def test_a_backlog_is_for_batches_and_later_messages_for_real_time(
    tmp_path: Path, cluster: SparkCluster, kafka_settings: KafkaSettings, receiver: Receiver
) -> None:
    """With the mode `auto`, which is the default."""
    bundle = bundled(tmp_path, cluster)
    with logs(kafka_settings) as log:
        log.subscribe(subscription(BESIDE[1:], receiver.url(BESIDE), "beside//."))
        accepted = log.notify_many(
            IN_BOTH_PARTITIONS[number % 2] for number in range(ModePolicy(WORTH_ELSEWHERE_S).backlog + 1_000)
        )
        with running_job(tmp_path, kafka_settings, bundle=bundle) as job:
            wait_until(lambda: "mode: realtime" in job.log(1_000_000), job.log, timeout_s=300)
            accepted += [log.notify(IN_BOTH_PARTITIONS[number % 2]) for number in range(100)]
            wait_until(lambda: len(counted(receiver, BESIDE)) >= len(accepted), f"all {len(accepted)} arrive")
            arrived = counted(receiver, BESIDE)
            assert partitions_in_real_time(kafka_settings)
    assert set(arrived.values()) == {1}
    for number in range(2):
        mine = set(accepted[number::2])
        assert [name for name in arrived if name in mine] == accepted[number::2]


@both_modes
def test_a_driver_that_is_lost_goes_on_elsewhere(
    tmp_path: Path, cluster: SparkCluster, kafka_settings: KafkaSettings, receiver: Receiver, mode: Mode
) -> None:
    """Like cluster deploy mode, which standalone masters do not have for Python: the other host has only the bundle,
    the settings, and the shared folders."""
    bundle = bundled(tmp_path / "made-here", cluster, driver_too=True)
    shared: dict[str, str | float] = {
        **SOON_AGAIN,
        "dispatch.mode": mode,
        "tables.path": str(tmp_path / "shared" / "tables"),
    }
    with logs(kafka_settings) as log:
        log.subscribe(subscription(FLAPPING[1:], receiver.url(FLAPPING), "a//."))
        with under_load(kafka_settings, receiver) as load:
            with running_job(tmp_path / "one-host", kafka_settings, shared, bundle) as job:
                receiver.wait_for(100, timeout=180)
                assert_mode(job, kafka_settings, mode)
                receiver.behave(FLAPPING, "status/503")
                wait_for_more(receiver)
                job.kill()
            receiver.behave(FLAPPING, "status/202")
            shutil.rmtree(tmp_path / "one-host")
            with running_job(tmp_path / "another-host", kafka_settings, shared, bundle) as job:
                wait_for_more(receiver)
                accepted = load.stop()
                assert_all_arrived(receiver, accepted, duplicates_allowed=400, timeout=300)
                assert_nothing_waits(kafka_settings, len(accepted))
                first_attempts = [name for name in counted(receiver, FLAPPING) if name in set(accepted)]
                assert first_attempts == accepted, "what was parked on the lost host is in its order"


@pytest.mark.parametrize(("setting", "value"), [("SPARK_AUTHENTICATE", "false"), ("SPARK_SECRET", "another")])
def test_a_job_that_does_not_know_the_secret_gets_no_executor(
    tmp_path: Path, cluster: SparkCluster, kafka_settings: KafkaSettings, setting: str, value: str
) -> None:
    bundle = bundled(tmp_path, cluster, {f"ARBORCAST_DISPATCH_{setting}": value})
    with killed(DispatchProcess(tmp_path / "home", kafka_settings, {}, bundle)) as job:
        with pytest.raises(AssertionError):
            job.start(180)
        assert "All masters are unresponsive" in job.log(1_000_000)
        assert not cluster.executors()


def test_a_python_without_our_packages_is_named(
    tmp_path: Path, cluster: SparkCluster, kafka_settings: KafkaSettings
) -> None:
    bundle = bundled(tmp_path, cluster)
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    text = bundle.properties.read_text().replace(
        f"spark.pyspark.python {bundle.python}", f"spark.pyspark.python {bare}/bin/python"
    )
    bundle.properties.write_text(text)
    with killed(DispatchProcess(tmp_path / "home", kafka_settings, {}, bundle)) as job:
        with contextlib.suppress(AssertionError):  # it may be ready: its warm-up failing is no reason to stop
            job.start()
        wait_until(lambda: "ModuleNotFoundError: No module named" in job.log(1_000_000), job.log)


def wait_for_workers_of_both(cluster: SparkCluster, receiver: Receiver) -> None:
    """Wait until two executors have Python workers that are connected to the receiver."""

    def pushing() -> int:
        return sum(any(connected(each, receiver) for each in below(executor)) for executor in cluster.executors())

    wait_until(lambda: pushing() == 2, pushing)


def below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def connected(process: psutil.Process, receiver: Receiver) -> bool:
    try:
        return any(each.raddr and each.raddr[1] == receiver.port for each in process.net_connections("tcp"))
    except psutil.NoSuchProcess:
        return False


def running(job: DispatchProcess) -> bool:
    return all(process.is_running() for process in job.processes()["driver"])


def wait_for_executors(cluster: SparkCluster, count: int, without: int = 0, timeout: float = 180.0) -> None:
    wait_until(
        lambda: len([each for each in cluster.executors() if each.pid != without]) >= count,
        "the cluster has started no new executor",
        timeout_s=timeout,
    )
