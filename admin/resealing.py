"""Resealing of every secret in the control log with the first key, while the engine runs.

The appended records are separate from those of subscriptions and cameras (`topic_model.projections.resealing`), so
concurrent changes are not undone; an interrupted run has done a part, and the next one does the rest.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from arborcast.admin import control_log
from arborcast.admin import keys as key_files
from arborcast.admin.operations import recorded
from arborcast.core.errors import SecretError
from arborcast.core.files import exclusive
from arborcast.core.security import keyring
from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.control_log import ControlFollower
from arborcast.topic_model.projections.cameras import Cameras
from arborcast.topic_model.projections.resealing import key_id, resealed, sealed_in
from arborcast.topic_model.records.control import ControlRecord, SecretsResealed, Tombstone, key_of
from arborcast.topic_model.records.operations import change
from arborcast.topic_model.routing import RoutingTable

# Limit of repetitions: a gateway that has not read the new key file yet may seal with the old key in between.
_MOST_ROUNDS = 5


@dataclass
class ResealingReport:
    """Numbers of resealed secrets and subscriptions (planned numbers in a dry run), and the numbers by key
    afterwards."""

    subscriptions: int = 0
    secrets: int = 0
    sealed: Counter[str] = field(default_factory=Counter)
    """The number of secrets sealed with each key, by its id."""
    stuck: dict[str, str] = field(default_factory=dict)
    """Subscriptions with secrets that cannot be opened, with the reason."""


class SealedSecrets:
    """The sealed secrets of the control log: a fold over it."""

    def __init__(self) -> None:
        self._table = RoutingTable()
        self._cameras = Cameras()
        # Also of ended subscriptions and removed cameras: the log has them until they are removed.
        self._resealed: set[str] = set()

    def apply(self, record: ControlRecord) -> None:
        self._table.apply(record)
        self._cameras.apply(record)
        match record:
            case SecretsResealed(id=name):
                self._resealed.add(name)
            case Tombstone(subject=("seal", name)):
                self._resealed.discard(name)

    def plan(self, keys: KeyRing) -> tuple[list[ControlRecord], ResealingReport]:
        """The records that reseal every secret with the first key, and the records' subjects."""
        records: list[ControlRecord] = []
        report = ResealingReport()
        for subscription in self._table.subscriptions():
            ids = [key_id(each) for each in sealed_in(subscription)]
            report.sealed.update(ids)
            try:
                record = resealed(subscription, keys, self._table.resealings.unreplaced(subscription.id))
            except SecretError as error:
                report.stuck[subscription.id] = str(error)
                continue
            if record is not None:
                records.append(record)
                report.subscriptions += 1
                report.secrets += sum(each != keys.current for each in ids)
        for camera in self._cameras:
            if camera.sealed:
                report.sealed[key_id(camera.sealed)] += 1
                if key_id(camera.sealed) != keys.current:
                    context = camera.sealing_context()
                    try:
                        sealed = keys.seal(keys.open(camera.sealed, context), context)
                    except SecretError as error:
                        report.stuck[camera.name] = str(error)
                        continue
                    written = self._cameras.written(camera.name) or camera
                    records.append(SecretsResealed(key_of(camera), {written.sealed: sealed, camera.sealed: sealed}))
                    report.secrets += 1
        cameras = {key_of(each) for each in self._cameras}
        records += [
            Tombstone.of("seal", each) for each in sorted(self._resealed - cameras) if self._table.get(each) is None
        ]
        return records, report


def reseal(kafka: KafkaSettings, keys: KeyRing, *, dry_run: bool = False) -> ResealingReport:
    """Reseal every secret with the first key. Raises InfrastructureError if Kafka is unavailable; another run
    continues."""
    if dry_run:
        return _reseal(kafka, keys, dry_run=True)
    with recorded(kafka, "keys reseal", [change(keys.current)]) as results:
        report = _reseal(kafka, keys, dry_run=False)
        results.append(f"{report.secrets} secrets of {report.subscriptions} subscriptions")
    return report


def _reseal(kafka: KafkaSettings, keys: KeyRing, *, dry_run: bool) -> ResealingReport:
    secrets = SealedSecrets()
    subscriptions = done = 0
    with closing(ControlFollower(kafka, lambda record, _offset: secrets.apply(record))) as follower:
        for rounds in range(_MOST_ROUNDS + 1):
            follower.read_to_end(control_log.READ_SECONDS)
            records, report = secrets.plan(keys)
            if dry_run:
                return report
            if not records or rounds == _MOST_ROUNDS:
                break
            control_log.append(kafka, records)
            subscriptions, done = subscriptions + report.subscriptions, done + report.secrets
    return ResealingReport(subscriptions, done, report.sealed, report.stuck)


def remove_key(kafka: KafkaSettings, path: Path, name: str) -> None:
    """Remove a key from the key file. Raises SecretError if a secret in the control log is sealed with it."""
    used = reseal(kafka, KeyRing(key_files.read(path)), dry_run=True).sealed[name]
    if used:
        raise SecretError(f"{used} secrets are still sealed with {name}: run arborcast keys reseal first")
    with recorded(kafka, "keys remove", [change(name)]), exclusive(path):
        keyring.remove_key(path, name)
