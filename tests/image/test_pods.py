"""The images as deploy/kubernetes runs them: deliveries, the cost of a kill or a rolling restart, and the probes.

Needs root, buildah, runc, ip and nft, and the images of `make image`.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from arborcast.client import Client, ClientError, Credentials, Retries
from tests.image.pods import (
    IMAGES,
    KAFKA_PORT,
    NODE,
    Pod,
    host,
    missing,
    node_broker,
    own_network,
    page_commands,
    quantity_bytes,
    replaced,
    run,
    service_links,
    unmount_storage,
)
from tests.support.gateway_process import ROOT
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.image, pytest.mark.long, pytest.mark.timeout(3600)]

ANNA = Credentials("anna", "anna-tree")

# Of these notifications the middle one is accepted while something is killed or restarted.
_BEFORE = _AFTER = 20
_MEASURED = 500


MANIFESTS = ROOT / "deploy" / "kubernetes"


def manifests(folder: Path | None = None, component: str = "") -> list[Any]:
    """The applied manifests; with a component, in a copy that has its line in the kustomization."""
    if folder is not None:
        shutil.copytree(MANIFESTS, folder)
        with (folder / "kustomization.yaml").open("a") as file:
            file.write(f"components: [{component}]\n")
    made = run("kubectl", "kustomize", folder or MANIFESTS).stdout
    return list(yaml.safe_load_all(made.replace("registry.example/", "")))


def run_page(commands: str, folder: Path) -> str:
    """Run commands of the page in a folder; their output."""
    own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder)}
    return run("bash", "-euc", commands, cwd=folder, env=os.environ | own, timeout=1200).stdout


def secret_of_the_page(folder: Path) -> dict[str, str]:
    """The Secret that the page's commands create."""
    folder.mkdir()
    (commands,) = re.findall(r"^arborcast keys new.*?^(?=kubectl apply)", page_commands("On Kubernetes"), re.M | re.S)
    create = "kubectl create secret generic arborcast"
    run_page(
        replaced(
            commands,
            ("users add anna", f"users add anna --stdin <<< {ANNA.password}"),
            (create, f"{create} --dry-run=client -o yaml > made.yaml"),
        ),
        folder,
    )
    made = yaml.safe_load((folder / "made.yaml").read_text())
    return {key: base64.b64decode(value).decode() for key, value in made["data"].items()}


class Cluster:
    """The node, with Kafka and receivers outside the pods, and the workloads of the manifests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._names: dict[str, str] = {}
        self.workloads: dict[str, Any] = {}
        self._policies: dict[str, Any] = {}
        self._services: dict[str, Any] = {}
        self.namespaces: dict[str, list[str]] = {}
        """The addresses of the pods in each of the other namespaces."""
        self._files = {"secret/arborcast": secret_of_the_page(folder / "page")}
        self.apply(manifests())
        self.apply(yaml.safe_load_all((MANIFESTS / "doctor.yaml").read_text()))
        self._adapt_settings()
        self.broker = node_broker(folder / "kafka")
        self.pods: list[Pod] = []
        self.gateways: list[Pod] = []

    def apply(self, given: Iterable[Any]) -> None:
        """Take these manifests, in place of those of the same kind and name."""
        kinds = {"NetworkPolicy": self._policies, "Service": self._services}
        for each in given:
            name, kind = each["metadata"]["name"], each["kind"]
            if kind == "ConfigMap":
                self._files.setdefault(f"configmap/{name}", each["data"])
            elif kind in kinds:
                kinds[kind][name] = each
            elif "template" in each.get("spec", {}):
                self.workloads[name] = each["spec"]

    def _adapt_settings(self) -> None:
        settings = self._files["configmap/arborcast"]["arborcast.toml"]
        for line, instead in (
            (r"bootstrap_servers = .*", f'bootstrap_servers = "{NODE}:{KAFKA_PORT}"'),
            (r"replication = 3", "replication = 1"),
            (r"public_url = .*", f'public_url = "http://{NODE}:8080"'),
            (r'# allow = "10.*', f'allow = "{NODE}"'),
        ):
            settings, replaced = re.subn(line, instead, settings)
            assert replaced == 1, line
        self._files["configmap/arborcast"] = {"arborcast.toml": settings}

    def pod(self, workload: str) -> Pod:
        """A new pod of a workload, started."""
        number = next(self._numbers)
        spec = self.workloads[workload]
        claim = self._folder / f"claim-{workload}" if "volumeClaimTemplates" in spec else None
        pod = Pod(
            f"{workload}-{number}",
            number,
            spec["template"],
            self._files,
            self._folder,
            service_links(self._services.values()),
            self._names,
            claim,
        )
        for name, service in self._services.items():
            if service["spec"].get("clusterIP") == "None" and service["spec"]["selector"].items() <= pod.labels.items():
                self._names[name] = pod.address
        self.pods.append(pod)
        pod.start()
        return pod

    def enforce(self, pod: Pod) -> None:
        """Enforce the network policy of this pod, with the pods that are there now."""
        (policy,) = (
            each["spec"]
            for each in self._policies.values()
            if each["spec"]["podSelector"]["matchLabels"].items() <= pod.labels.items()
        )
        pod.enforce(policy, self._peers)

    def _peers(self, peer: Mapping[str, Any]) -> list[str]:
        if "namespaceSelector" in peer:
            name = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
            return self.namespaces.get(name, [])
        wanted = peer["podSelector"]["matchLabels"].items()
        return [each.address for each in self.pods if wanted <= each.labels.items()]

    def replace(self, old: Pod) -> Pod:
        """One step of a rolling restart: a new pod, and then the end of the old one, in order and in its time."""
        workload = old.name.rpartition("-")[0]
        new = self.pod(workload)  # maxSurge: 1
        new.wait_for("readinessProbe")
        if old in self.gateways:
            self.gateways[self.gateways.index(old)] = new  # an ending pod is no endpoint of the Service
        self.end(old)
        return new

    def restart(self, pod: Pod) -> None:
        """One step of a rolling restart of a StatefulSet: the end of the pod in order, and then its next start."""
        self._terminate(pod)
        pod.start_main()
        pod.wait_for("startupProbe" if "startupProbe" in pod.main else "readinessProbe")

    def end(self, pod: Pod) -> None:
        """End a pod as the kubelet does, and remove it."""
        self._terminate(pod)
        self.remove(pod)

    def _terminate(self, pod: Pod) -> None:
        status, took = pod.terminate()
        assert status in (0, 143), pod.tail()  # a JVM that is ended by SIGTERM has 143
        grace = self.workloads[pod.name.rpartition("-")[0]]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
        assert took < grace

    def remove(self, pod: Pod) -> None:
        """Remove a pod that has ended."""
        pod.remove()
        self.pods.remove(pod)

    @contextmanager
    def load(self, receiver: Receiver, pause: float = 0.1) -> Iterator[Load]:
        """Publish all the time; in the end, everything that was accepted has arrived."""
        load = Load(lambda: [each for each in self.gateways if each.probe("readinessProbe")], pause)
        load.start()
        try:
            yield load
            load.wait_for_more(_AFTER)
        finally:
            load.stop()
        deadline = time.monotonic() + 300
        while lost := load.accepted - arrived(receiver):
            assert time.monotonic() < deadline, f"{len(lost)} of {len(load.accepted)} lost: {sorted(lost)[:20]}"
            time.sleep(1)

    def measure(self, receiver: Receiver, pods: list[Pod]) -> None:
        """Their memory and CPU, at rest for a minute, and under as many notifications as one publisher sends one after
        the other. It is printed; the memory is not above the manifests' requests."""
        for loaded in (False, True):
            began, before, accepted = time.monotonic(), [each.usage() for each in pods], 0
            if loaded:
                with self.load(receiver, pause=0) as load:
                    load.wait_for_more(_MEASURED)
                accepted = len(load.accepted)
            else:
                time.sleep(60)
            took = time.monotonic() - began
            for pod, (_, cpu) in zip(pods, before, strict=True):
                memory, cpu_after = pod.usage()
                print(
                    f"{pod.name}, {accepted / took:.0f} notifications/s: {memory >> 20} MiB, "
                    f"{1000 * (cpu_after - cpu) / took:.0f} m CPU"
                )
                assert memory <= quantity_bytes(pod.main["resources"]["requests"]["memory"]), pod.name


class Load(threading.Thread):
    """Publishes numbers, one after the other, to one ready gateway after the other; what fails is published again."""

    _numbers = itertools.count()

    def __init__(self, ready: Callable[[], list[Pod]], pause: float) -> None:
        super().__init__(daemon=True)
        self._ready = ready
        self._pause = pause
        self._stopping = threading.Event()
        self.accepted: set[int] = set()

    def run(self) -> None:
        number = next(self._numbers)
        while not self._stopping.is_set():
            for pod in self._ready():
                try:
                    with client(pod) as broker:
                        broker.notify("load/a", f"<n>{number}</n>")
                except ClientError:
                    continue
                self.accepted.add(number)
                number = next(self._numbers)
                self._stopping.wait(self._pause)
            self._stopping.wait(self._pause)

    def wait_for_more(self, count: int) -> None:
        """Wait until as many more are accepted."""
        wanted, deadline = len(self.accepted) + count, time.monotonic() + 300
        while len(self.accepted) < wanted:
            assert time.monotonic() < deadline, f"{len(self.accepted)} of {wanted} accepted"
            time.sleep(0.2)

    def stop(self) -> None:
        """Publish no more."""
        self._stopping.set()
        self.join(120)


def client(pod: Pod) -> Client:
    return Client(
        f"http://{pod.address}:8080/wsn/NotificationBroker",
        credentials=ANNA,
        retries=Retries(attempts=1),
        timeout_s=(5, 30),
    )


def arrived(receiver: Receiver) -> set[int]:
    # One push may have several notifications.
    return {int(n) for each in receiver.received("/load") for n in re.findall(rb"<n>(\d+)</n>", each.body)}


def assert_confined(pod: Pod) -> None:
    status = pod.exec("cat", "/proc/1/status").stdout
    found = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
    assert found["Uid"] == ["10001"] * 4
    assert found["CapBnd"] == found["CapEff"] == ["0000000000000000"]
    assert (found["NoNewPrivs"], found["Seccomp"]) == (["1"], ["2"])
    assert "Read-only file system" in pod.exec("touch", "/opt/arborcast/x").stderr
    assert pod.probe("livenessProbe")


def assert_balanced(job: Pod) -> None:
    config = "/etc/arborcast/arborcast.toml"
    audit = job.exec("arborcast", "audit", "--deep", "--since", "2h", "--patience", "120", "--config", config)
    assert audit.returncode == 0, audit.stdout + audit.stderr


def assert_probes_find_a_standstill(pod: Pod) -> None:
    """Of a server: it accepts connections and gives no answer."""
    probes = ("readinessProbe", "livenessProbe")
    for each in probes:
        pod.wait_for(each)
    pod.exec("sh", "-c", "kill -s STOP -- -1")  # all processes but the first
    for each in probes:
        pod.wait_for(each, False)
    pod.exec("sh", "-c", "kill -s CONT -- -1")
    for each in probes:
        pod.wait_for(each)


def hosts_of_executors(master: Pod) -> set[str]:
    """The workers of which the job has the cores."""
    with urllib.request.urlopen(f"http://{master.address}:8080/json/", timeout=30) as answer:
        found = json.load(answer)
    return {each["host"] for each in found["workers"] if each["state"] == "ALIVE" and each["coresused"]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if lacks := missing():
        pytest.skip(lacks)
    if not (IMAGES / "job.cdx.json").exists():
        pytest.skip("there are no images: make image")
    with own_network():
        made = Cluster(tmp_path_factory.mktemp("pods"))
        try:
            made.broker.start()
            yield made
        finally:
            for pod in made.pods:
                pod.remove()
            made.broker.kill()
            unmount_storage()


@pytest.fixture(scope="module")
def receiver(cluster: Cluster) -> Iterator[Receiver]:
    with Receiver(host=NODE) as started:
        yield started


@pytest.fixture(scope="module")
def job(cluster: Cluster, receiver: Receiver) -> Pod:
    """The job, beside two gateways, with a subscription."""
    cluster.gateways += [cluster.pod("arborcast-gateway") for _ in range(2)]
    job = cluster.pod("arborcast-job")
    for each in cluster.gateways:
        each.wait_for("readinessProbe")
    job.wait_for("startupProbe")
    with client(cluster.gateways[0]) as broker:
        broker.subscribe("load//.", to=receiver.url("/load"))
    return job


def test_they_are_confined_and_deliver(cluster: Cluster, job: Pod, receiver: Receiver) -> None:
    for pod in (*cluster.gateways, job):
        assert_confined(pod)
    with cluster.load(receiver) as load:
        load.wait_for_more(_BEFORE)


def test_requests_cover_the_usage(cluster: Cluster, job: Pod, receiver: Receiver) -> None:
    cluster.measure(receiver, [*cluster.gateways, job])


def test_the_doctor_finds_nothing_wrong(cluster: Cluster, job: Pod) -> None:
    doctor = cluster.pod("arborcast-doctor")
    assert doctor.wait() == 0, doctor.tail()
    cluster.remove(doctor)


def test_a_gateway_is_killed(cluster: Cluster, job: Pod, receiver: Receiver) -> None:
    for gateway in cluster.gateways:
        with cluster.load(receiver) as load:
            load.wait_for_more(_BEFORE)
            gateway.kill()
            assert not gateway.probe("readinessProbe")
            load.wait_for_more(_AFTER)
            gateway.start_main()
            gateway.wait_for("readinessProbe")


def test_the_job_is_killed(cluster: Cluster, job: Pod, receiver: Receiver) -> None:
    with cluster.load(receiver) as load:
        load.wait_for_more(_BEFORE)
        job.kill()
        load.wait_for_more(_AFTER)
        job.start_main()
        job.wait_for("startupProbe")


def test_a_rolling_restart_under_load(cluster: Cluster, job: Pod, receiver: Receiver) -> None:
    with cluster.load(receiver) as load:
        for old in list(cluster.gateways):
            cluster.replace(old)
            load.wait_for_more(_AFTER)
        cluster.restart(job)


def test_the_page_ends_with_a_delivered_notification(cluster: Cluster, job: Pod, tmp_path: Path) -> None:
    _, commands = page_commands("On Kubernetes").split(" port-forward service/arborcast 8080:80 &\n")
    address = cluster.gateways[0].address
    shown = run_page(
        replaced(commands, ("127.0.0.1", address), ("10.0.42.17", NODE), ("password …", f"password {ANNA.password}")),
        tmp_path,
    )
    assert "<hello/>" in shown


def test_probes_while_kafka_is_away(cluster: Cluster, job: Pod) -> None:
    """Readiness fails, so no client is sent to the gateway; liveness holds, so nothing is restarted."""
    cluster.broker.kill()
    gateway = cluster.gateways[0]
    gateway.wait_for("readinessProbe", False)
    for _ in range(10):
        assert gateway.probe("livenessProbe")
        assert job.probe("livenessProbe"), job.tail()
        time.sleep(2)
    cluster.broker.start()
    gateway.wait_for("readinessProbe")


def test_liveness_of_a_job_that_stands_still(cluster: Cluster, job: Pod, receiver: Receiver) -> None:
    """It fails after the two minutes of its command, not before; started again, the job delivers."""
    assert job.exec("sh", "-c", "kill -STOP $(pidof java)").returncode == 0
    assert job.probe("livenessProbe")
    assert job.wait_for("livenessProbe", False, timeout=400) > 60
    job.kill()
    with cluster.load(receiver) as load:
        load.wait_for_more(_BEFORE)
        job.start_main()
        job.wait_for("startupProbe")


def test_probes_of_a_gateway_that_stands_still(cluster: Cluster, job: Pod) -> None:
    assert_probes_find_a_standstill(cluster.gateways[0])


def test_the_network_policies_hold(cluster: Cluster, job: Pod, receiver: Receiver) -> None:
    """Metrics and gateways are for the namespaces that are named; metadata services are for no pod."""
    metadata = "169.254.169.254"
    run("ip", "addr", "add", f"{metadata}/32", "dev", "pods")
    pods = {job: 9464, cluster.gateways[0]: 8080}
    with Receiver(host=metadata) as service, host("prometheus", 200) as prometheus, host("other", 201) as other:
        assert all(each.reaches(metadata, service.port) for each in pods), "without a policy"
        cluster.namespaces["monitoring"] = [prometheus.address]
        for pod in (*cluster.gateways, job):
            cluster.enforce(pod)
        for pod, port in pods.items():
            assert not pod.reaches(metadata, service.port)
            assert pod.reaches(NODE, receiver.port)
            assert prometheus.reaches(pod.address, port)
            assert not other.reaches(pod.address, port)
    with cluster.load(receiver) as load:
        load.wait_for_more(_BEFORE)


def test_all_balances(job: Pod) -> None:
    assert_balanced(job)


def test_the_job_on_a_spark_cluster(cluster: Cluster, job: Pod, receiver: Receiver, tmp_path: Path) -> None:
    """The job is moved to a master and two workers. Each of them is killed under load, and the workers are replaced."""
    cluster.end(job)
    cluster.apply(manifests(tmp_path / "kubernetes", component="spark"))
    master = cluster.pod("arborcast-spark-master")
    workers = [cluster.pod("arborcast-spark-worker") for _ in range(2)]
    for pod in (master, *workers):
        pod.wait_for("readinessProbe")
    job = cluster.pod("arborcast-job")
    spark = (master, *workers, job)
    for pod in spark:
        cluster.enforce(pod)
    job.wait_for("startupProbe")
    for pod in spark:
        assert_confined(pod)
    wait_until(lambda: hosts_of_executors(master) == {each.address for each in workers}, "an executor on each worker")
    with host("stranger", 202) as stranger:
        assert job.reaches(master.address, 7077)
        assert not stranger.reaches(master.address, 7077)
        assert not master.reaches(master.address, 6066), "the REST server starts applications without a secret"
    # The master first: what is lost later is placed by the master that was started again.
    for pod in spark:
        with cluster.load(receiver) as load:
            load.wait_for_more(_BEFORE)
            pod.kill()
            load.wait_for_more(_AFTER)
            pod.start_main()
            pod.wait_for("startupProbe" if pod is job else "readinessProbe")
            wait_until(
                lambda: hosts_of_executors(master) == {each.address for each in workers}, "an executor on each worker"
            )
    for old in list(workers):
        with cluster.load(receiver) as load:
            load.wait_for_more(_BEFORE)
            workers[workers.index(old)] = cluster.replace(old)
            for each in (master, *workers, job):
                cluster.enforce(each)
            wait_until(
                lambda: hosts_of_executors(master) == {each.address for each in workers}, "an executor on each worker"
            )
    for pod in (master, workers[0]):
        assert_probes_find_a_standstill(pod)
    for pod in (master, job):
        with cluster.load(receiver) as load:
            load.wait_for_more(_BEFORE)
            cluster.restart(pod)
    wait_until(lambda: hosts_of_executors(master) == {each.address for each in workers}, "an executor on each worker")
    cluster.measure(receiver, [master, *workers, job])
    assert_balanced(job)
