"""The image's recipe and the manifests: errors that Kubernetes reports, and errors that appear only at run time."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from arborcast.core.files import readable_by_others
from arborcast.core.security.ip_addresses import read_networks
from arborcast.dispatch.job import runtime
from arborcast.dispatch.settings import DispatchSettings
from arborcast.dispatch.spark.properties import DAEMONS, guarded
from arborcast.engine.gateway import process
from arborcast.engine.settings.checks import check_gateway
from arborcast.engine.settings.loading import RESERVED_ENV, Settings, declarations, load_settings
from arborcast.engine.settings.outbound import policy_of
from tests.image.pods import service_links

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = ("1.29", "1.37")  # the first and last supported version; a schema takes seconds

Manifest = dict[str, Any]

KUSTOMIZATION = DEPLOY / "kubernetes" / "kustomization.yaml"


@cache
def manifests() -> list[Manifest]:
    files = sorted({*(DEPLOY / "kubernetes").glob("*.yaml")} - {KUSTOMIZATION})
    return [each for file in files for each in documents_in(file)]


def spark(kind: str) -> list[Manifest]:
    """The documents of the component spark."""
    return [each for each in documents_in(DEPLOY / "kubernetes" / "spark" / "spark.yaml") if kind in each["kind"]]


@cache
def documents_in(file: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(file.read_text()))


def of_kind(kind: str, name: str = "") -> list[Manifest]:
    return [each for each in manifests() if each["kind"] == kind and name in each["metadata"]["name"]]


def pod_of(workload: Manifest) -> Manifest:
    found: Manifest = workload["spec"]["template"]["spec"]
    return found


def main_of(workload: Manifest) -> Manifest:
    (found,) = pod_of(workload)["containers"]
    return dict(found)


def workloads() -> list[Manifest]:
    return of_kind("Deployment") + of_kind("StatefulSet")


def pods() -> Iterator[tuple[Manifest, Manifest]]:
    for workload in workloads() + of_kind("Job"):
        yield workload, pod_of(workload)


def containers() -> Iterator[Manifest]:
    for _, pod in pods():
        yield from pod["containers"]


def settings(tmp_path: Path) -> Settings:
    """The settings in the pods."""
    (config,) = of_kind("ConfigMap")
    file = tmp_path / "arborcast.toml"
    file.write_text(config["data"]["arborcast.toml"])
    given = {
        variable["name"]: variable.get("value", "from a secret")
        for container in containers()
        for variable in container.get("env", ())
        if variable["name"].removeprefix("ARBORCAST_") not in RESERVED_ENV
    }
    for _, pod in pods():
        given |= service_links(of_kind("Service")) if pod.get("enableServiceLinks", True) else {}
    return load_settings(file, tmp_path, environ=given)


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_published_schemas_hold(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="one of the development packages: make setup").validate
    for manifest in manifests() + spark(""):
        validate(manifest, version, strict=True)


def test_settings_ports_and_paths_agree(tmp_path: Path) -> None:
    found = settings(tmp_path)
    check_gateway(found)
    assert (found.kafka.replication, found.stack.broker) == (3, "external")
    assert found.dispatch.task_slots >= found.kafka.partitions, "otherwise the mode is never real time"
    assert found.kafka.sasl_password, "the name of the variable"
    ports = {port["name"]: port["containerPort"] for each in containers() for port in each.get("ports", ())}
    assert ports == {"http": found.gateway.port, "metrics": found.metrics.job_port}
    for workload, _ in pods():
        mounted = [mount["mountPath"] for mount in main_of(workload)["volumeMounts"]]
        for path in (found.secrets.key_file, found.access.users_file, "/var/lib/arborcast", "/tmp"):  # noqa: S108
            assert any(path.startswith(each) for each in mounted), path


def test_each_pod_has_only_the_secret_files_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the whole Secret. Only gateways read the users: a compromised job must not have them. The files are those of
    the mounted Secret, which change with it."""
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    found = settings(tmp_path)
    keys, users = Path(found.secrets.key_file), Path(found.access.users_file)
    read = {"arborcast-gateway": {keys, users}, "arborcast-job": {keys}, "arborcast-doctor": {keys}}
    (secret,) = of_kind("Secret")
    given = {}
    for workload, pod in pods():
        ((name, volume),) = [(each["name"], each["secret"]) for each in pod["volumes"] if "secret" in each]
        (mount,) = [each for each in main_of(workload)["volumeMounts"] if each["name"] == name]
        assert "subPath" not in mount, "a kubelet does not update it after a change of the Secret"
        assert "initContainers" not in pod, "a copy of the files stays the same"
        assert {each["key"] for each in volume["items"]} <= secret["stringData"].keys()
        assert all(each["key"] == each["path"] for each in volume["items"])
        given[workload["metadata"]["name"]] = {Path(mount["mountPath"], each["path"]) for each in volume["items"]}
        mounted = os.stat_result((volume["defaultMode"], *[0] * 9))
        assert not readable_by_others(mounted), "otherwise passwords in clear text are refused"
    assert given == read


def test_referenced_objects_exist() -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in manifests()}
    secret_keys = of_kind("Secret")[0]["stringData"]
    for workload, pod in pods():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes) | claims
            for variable in container.get("env", ()):
                if "valueFrom" in variable:
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert ("Secret", reference["name"]) in names
                    assert reference["key"] in secret_keys
        assert ("ConfigMap", volumes["settings"]["configMap"]["name"]) in names
        assert ("Secret", volumes["keys"]["secret"]["secretName"]) in names
        if workload["kind"] == "StatefulSet":
            assert ("Service", workload["spec"]["serviceName"]) in names


def test_kustomize_excludes_only_the_secret_and_the_job() -> None:
    (kustomization,) = documents_in(KUSTOMIZATION)
    taken = [each for name in kustomization["resources"] for each in documents_in(KUSTOMIZATION.parent / name)]
    assert [each for each in manifests() if each not in taken] == of_kind("Job")
    # docs/cluster.md applies the settings first, by this label.
    first = [each["kind"] for each in taken if "app.kubernetes.io/component" not in each["metadata"]["labels"]]
    assert first == ["ConfigMap", "Secret"]
    images = {each["image"].partition(":")[0] for each in containers()}
    assert {each["name"] for each in kustomization["images"]} == images
    (patch,) = kustomization["patches"]
    (secret,) = of_kind("Secret")
    assert patch["target"] == {"kind": "Secret", "name": secret["metadata"]["name"]}
    left_out = yaml.safe_load(patch["patch"])
    assert (left_out["$patch"], left_out["kind"], left_out["metadata"]["name"]) == ("delete", "Secret", "arborcast")


def test_selectors_select() -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in workloads()]
    assert [each["spec"]["selector"]["matchLabels"] for each in workloads()] == labels
    chosen = [each["spec"]["selector"] for each in of_kind("Service")]
    chosen += [each["spec"]["selector"]["matchLabels"] for each in of_kind("PodDisruptionBudget")]
    chosen += [each["spec"]["podSelector"]["matchLabels"] for each in of_kind("NetworkPolicy")]
    for selector in chosen:
        assert sum(selector.items() <= each.items() for each in labels) == 1, "one of the two, not both, not none"
    for service in of_kind("Service"):
        selector = service["spec"]["selector"].items()
        (target,) = [each for each in workloads() if selector <= each["metadata"]["labels"].items()]
        open_ports = [port["name"] for port in main_of(target)["ports"]]
        assert [port["targetPort"] for port in service["spec"]["ports"]] == open_ports


def test_pods_stop_in_order_and_never_all_at_once(tmp_path: Path) -> None:
    """In less time than the kubelet's grace period, after which it kills them."""
    found = settings(tmp_path)
    (budget,), (gateway,), (job,) = of_kind("PodDisruptionBudget"), of_kind("Deployment"), of_kind("StatefulSet")
    assert 0 < budget["spec"]["minAvailable"] < gateway["spec"]["replicas"], "a drain must end"
    first = float(main_of(gateway)["lifecycle"]["preStop"]["exec"]["command"][1])
    needed = first + found.gateway.stop_timeout_s + process._STOP_S
    assert pod_of(gateway)["terminationGracePeriodSeconds"] > needed
    queries = 3 * 5.0
    batch = 2 * found.retry.batch_wait_s + runtime._STOP_MARGIN_S
    beside = runtime._RECORDING_STOP_S + runtime._REDELIVERY_STOP_S
    assert pod_of(job)["terminationGracePeriodSeconds"] > 1.5 * (batch + queries + beside)
    assert job["spec"]["replicas"] == 1, "never a second job"
    assert job["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_network_policies_restrict_each_part(tmp_path: Path) -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind("NetworkPolicy")}
    assert set(policies) == {each["metadata"]["name"] for each in workloads()}
    for policy in policies.values():
        assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
        assert all(rule["from"] for rule in policy["ingress"]), "only named sources"
        blocks = [each["ipBlock"] for rule in policy["egress"] for each in rule.get("to", ())]
        shut = [ipaddress.ip_network(each) for block in blocks for each in block["except"]]
        for service in ("169.254.169.254", "100.100.100.200", "fd00:ec2::254"):
            assert any(ipaddress.ip_address(service) in each for each in shut), service


def test_pushes_into_the_cluster_need_a_setting(tmp_path: Path) -> None:
    """Subscribers choose the address, and answers of services inside are readable in the tables."""
    policy = policy_of(settings(tmp_path))
    for address in ("10.96.0.1", "10.244.1.7", "172.16.0.1", "192.168.1.1", "fd00::1", "100.64.0.1", "169.254.169.254"):
        assert policy.check_address(address, 443) is not None, address
    assert policy.check_address("1.1.1.1", 443) is None
    (config,) = of_kind("ConfigMap")
    examples = re.sub(r"^# (\w+ = )", r"\1", config["data"]["arborcast.toml"], flags=re.MULTILINE)
    file = tmp_path / "examples.toml"
    file.write_text(examples)
    shown = load_settings(file, tmp_path, environ={})
    assert shown.outbound.allow, "the example exists, and is valid"
    assert shown.gateway.trusted_proxies
    assert not any(net.prefixlen < 24 for net in read_networks(shown.outbound.allow, "outbound.allow"))


def test_a_spark_cluster_fits_the_job(tmp_path: Path) -> None:
    """Pods with the job's restrictions and its properties of a cluster, and enough cores for its tasks."""
    (job,), found = of_kind("StatefulSet"), settings(tmp_path)
    of_job, (config,) = pod_of(job), spark("ConfigMap")
    workloads = {each["metadata"]["name"]: each["spec"] for each in spark("Set") + spark("Deployment")}
    lines = config["data"]["spark-cluster.properties"].splitlines()
    known = dict(line.split(" ", 1) for line in lines if not line.startswith("#"))
    assert known.items() >= {**guarded(DispatchSettings()), **DAEMONS}.items()
    for workload in workloads.values():
        pod = workload["template"]["spec"]
        (main,) = pod["containers"]
        assert pod["securityContext"] == of_job["securityContext"]
        assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
        for key in ("image", "securityContext"):
            assert main[key] == of_job["containers"][0][key]
        assert "memory" in main["resources"]["limits"]
        assert {each["name"] for each in main["volumeMounts"]} == {each["name"] for each in pod["volumes"]} | {
            each["metadata"]["name"] for each in workload.get("volumeClaimTemplates", ())
        }
        (secret,) = (each for each in main["env"] if each["name"] == "_SPARK_AUTH_SECRET")
        assert secret["valueFrom"]["secretKeyRef"]["key"] in of_kind("Secret")[0]["stringData"]
        assert config["metadata"]["name"] in {each.get("configMap", {}).get("name") for each in pod["volumes"]}
    (service,) = spark("Service")
    master, workers = workloads["arborcast-spark-master"], workloads["arborcast-spark-worker"]
    assert service["spec"]["selector"] == master["template"]["metadata"]["labels"]
    url = f"spark://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    arguments = workers["template"]["spec"]["containers"][0]["args"]
    component = yaml.safe_load((DEPLOY / "kubernetes" / "spark" / "kustomization.yaml").read_text())
    of_the_job, of_its_policy = component["patches"]
    assert arguments[-1] == url
    assert url in of_the_job["patch"]
    cores = int(arguments[arguments.index("--cores") + 1])
    assert workers["replicas"] * cores >= found.kafka.partitions, "otherwise the mode is never real time"
    for selector in (
        spark("NetworkPolicy")[0]["spec"]["podSelector"]["matchLabels"],
        yaml.safe_load(of_its_policy["patch"])[0]["value"]["from"][0]["podSelector"]["matchLabels"],
    ):
        assert all(selector.items() <= each["template"]["metadata"]["labels"].items() for each in workloads.values())
    (budget,) = spark("PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"] == workers["template"]["metadata"]["labels"]


def test_no_secret_is_in_a_config_map() -> None:
    (config,) = of_kind("ConfigMap")
    given = tomllib.loads(config["data"]["arborcast.toml"])
    secret = {(each.section, each.name) for each in declarations() if each.info.secret}
    assert not {(section, name) for section, values in given.items() for name in values} & secret


def test_nothing_runs_as_root_or_writes_to_its_image() -> None:
    for _, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["automountServiceAccountToken"] is False
    for container in containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


def test_probes_call_existing_paths() -> None:
    (gateway,), (job,) = of_kind("Deployment"), of_kind("StatefulSet")
    paths = [main_of(gateway)[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")]
    served = "".join(file.read_text() for file in (ROOT / "ingest").rglob("*.py"))
    assert paths == ["/health/ready", "/health/live"]
    assert all(f'"{path}"' in served for path in paths)
    main = main_of(job)
    (ready,) = (each["value"] for each in main["env"] if each["name"] == "ARBORCAST_READY_FILE")
    assert main["startupProbe"]["exec"]["command"][-1] == ready
    assert f"find {ready} " in main["livenessProbe"]["exec"]["command"][-1]


def test_the_image_has_a_user_and_the_commands_of_the_manifests() -> None:
    recipe = (DEPLOY / "Containerfile").read_text()
    (job,) = of_kind("StatefulSet")
    user = str(pod_of(job)["securityContext"]["runAsUser"])
    # Hadoop's login, and with it Spark, fails for a user that is only a number.
    assert f"useradd --uid {user} " in recipe
    for part, workload in (("gateway", of_kind("Deployment")[0]), ("job", job)):
        _, _, stage = recipe.partition(f" AS {part}\n")
        stage = stage.partition("\nFROM ")[0]
        assert f"USER {user}:{user}\n" in stage
        (command,) = re.findall(r"^CMD (.+)$", stage, re.MULTILINE)
        assert json.loads(command) == main_of(workload)["args"][: len(json.loads(command))]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {each["image"] for each in containers()} == {f"arborcast-gateway:{version}", f"arborcast-job:{version}"}


def lock(file: Path) -> dict[str, set[str]]:
    """The packages with their versions, and the hashes of their files."""
    entries = re.split(r"\n(?=\S)", file.read_text())
    return {entry.split()[0]: set(re.findall(r"sha256:(\w+)", entry)) for entry in entries if "==" in entry}


def named(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", each)[0].lower() for each in requirements}


def test_the_images_have_only_tested_packages() -> None:
    tested = lock(ROOT / "requirements.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    everything = named(project["project"]["dependencies"] + extras["otel"] + extras["zmq"] + extras["mqtt"])
    everything -= {"arborcast-client"}
    of_gateway = named(project["dependency-groups"]["gateway"])
    assert of_gateway < everything
    for part, wanted in (("gateway", of_gateway), ("job", everything)):
        locked = lock(DEPLOY / f"{part}.lock")
        assert all(tested.get(each) == sums for each, sums in locked.items()), "make lock"
        assert wanted <= {each.partition("==")[0] for each in locked}


def test_the_gateway_s_image_has_all_packages_that_it_imports() -> None:
    """Found by an import of all modules of its packages, in a new process."""
    script = """
import importlib, importlib.metadata, json, pkgutil, sys
floors = "core", "topic_model", "wire", "client", "directory", "ingest"
for top in (*floors, "engine.settings", "engine.gateway", "engine.administrator"):
    package = importlib.import_module(f"arborcast.{top}")
    for each in pkgutil.walk_packages(package.__path__, f"arborcast.{top}."):
        if not each.name.endswith("__main__"):
            importlib.import_module(each.name)
known = importlib.metadata.packages_distributions()
print(json.dumps(sorted({of for name in sys.modules for of in known.get(name.partition(".")[0], ())})))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ours = {"arborcast", "arborcast-client", "setuptools"}  # setuptools is for editable installations
    found = {each.lower().replace("_", "-") for each in json.loads(done.stdout)} - ours
    assert "lxml" in found
    assert found <= {each.partition("==")[0] for each in lock(DEPLOY / "gateway.lock")}


def test_the_properties_of_the_job_are_in_a_private_file(tmp_path: Path) -> None:
    """They have secrets: not into an existing file, nor through a link."""
    temporary, commands, planted = tmp_path / "tmp", tmp_path / "bin", tmp_path / "planted"
    for folder in (temporary, commands):
        folder.mkdir()
    planted.write_text("")
    (temporary / "spark.properties").symlink_to(planted)
    programs = {"arborcast": "echo secret", "python": "echo x", "spark-submit": 'stat -c %a "$2"; cat "$2"'}
    for name, line in programs.items():
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    environment = {"PATH": f"{commands}:{os.environ['PATH']}", "TMPDIR": str(temporary)}
    for _ in range(2):
        ran = subprocess.run(["/bin/sh", DEPLOY / "run-job", "x"], env=environment, capture_output=True, check=True)
        assert ran.stdout == b"600\nsecret\n"
    assert planted.read_text() == ""
    assert len(list(temporary.glob("spark.properties.*"))) == 1, "a start removes the files of the one before"


def unit_values(unit: Path, key: str) -> list[str]:
    text = unit.read_text().replace("\\\n", "")
    return [value.strip() for name, _, value in (line.partition("=") for line in text.splitlines()) if name == key]


UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: str(unit.name))
def test_units_of_systemd_are_sandboxed(unit: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze")
    # 20 of 100, where more is worse.
    strict = [analyze, "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)]
    analysed = subprocess.run(strict, capture_output=True, text=True)
    assert analysed.returncode == 0, analysed.stdout + analysed.stderr
    verified = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True)
    complaints = [line for line in verified.stderr.splitlines() if unit.name in line]
    assert all("is not executable" in line for line in complaints), "a wrong name or value"


def test_units_of_systemd_run_the_commands_of_the_pods() -> None:
    for name, workload in (("gateway", of_kind("Deployment")[0]), ("job", of_kind("StatefulSet")[0])):
        pod, main = pod_of(workload), main_of(workload)
        unit = DEPLOY / "systemd" / f"arborcast-{name}.service"
        (command,) = unit_values(unit, "ExecStart")
        assert command == f"/opt/arborcast/bin/{' '.join(main['args'])}"
        assert unit_values(unit, "TimeoutStopSec") == [str(pod["terminationGracePeriodSeconds"])]
        assert unit_values(unit, "MemoryMax") == [main["resources"]["limits"]["memory"].removesuffix("i")]
        assert unit_values(unit, "StateDirectory") == ["arborcast"]
    (command,) = unit_values(DEPLOY / "systemd" / "arborcast-administrator.service", "ExecStart")
    python, *arguments = command.split()
    shown = subprocess.run([sys.executable, *arguments, "--help"], capture_output=True, text=True, check=True).stdout
    assert python == "/opt/arborcast/bin/python"
    assert all(each in shown for each in arguments if each.startswith("--"))
