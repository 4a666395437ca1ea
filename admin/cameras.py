"""Cameras whose events the engine fetches: added, removed, paused, and their state."""

from __future__ import annotations

import dataclasses
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from arborcast.admin import connection, control_log
from arborcast.admin.operations import recorded
from arborcast.admin.queues import JobFigures, job_figures
from arborcast.core.errors import ConfigError, InfrastructureError, NotFound
from arborcast.core.security.keyring import KeyFile
from arborcast.core.security.uris import without_password
from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded.state import addresses
from arborcast.engine.settings.loading import Settings
from arborcast.engine.settings.outbound import outbound_of, policy_of
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import (
    CameraCondition,
    CameraRecord,
    CameraState,
    ControlRecord,
    Tombstone,
    ending_camera,
)
from arborcast.topic_model.records.operations import change

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")

_DEVICE_SERVICE = "/onvif/device_service"

# Of refusals that no address is exempt from, by their rule.
_REMEDIES = {
    **dict.fromkeys(("spelling", "scheme", "https-only"), "correct the address"),
    "userinfo": "name the user with --user",
    "denied": "remove the network from outbound.deny",
    "own-port": "name the address of the camera",
    "port": "add the port to outbound.ports",
}


class CameraRequest(NamedTuple):
    """A camera to add. `url`: only its host, or the address of its device service. `insecure`: its TLS certificate is
    not verified."""

    name: str
    url: str
    user: str = ""
    password: str = ""
    insecure: bool = False


CameraListState = Literal[CameraCondition, "new", "paused", "unknown"]


class ListedCamera(msgspec.Struct, frozen=True):
    """A camera. Its state is "unknown" if no gateway answers; the numbers are those of the gateway with the lease, None
    at another one."""

    camera: str
    url: str
    user: str
    state: CameraListState
    since_ms: int
    error: str
    way: Literal["pull", "push", ""]
    events: int | None
    last_event_ms: int
    renewals: int | None
    clock_offset_s: float | None


def add(settings: Settings, kafka: KafkaSettings, request: CameraRequest) -> None:
    """Add a camera, or change the address, user and password of one. Raises ConfigError, SecretError."""
    if not _NAME.fullmatch(request.name):
        raise ConfigError(
            f"a camera's name has up to 64 letters of ASCII, digits, and . _ - in between, not {request.name[:100]!r}"
        )
    url = _device_service(settings, request.url)
    before = control_log.read_control(kafka).cameras.get(request.name)
    key = before.key if before is not None else secrets.token_urlsafe(24)
    after = CameraRecord(
        request.name, url, key, request.user, "", request.insecure, before is not None and before.paused
    )
    if request.user:
        sealed = KeyFile(Path(settings.secrets.key_file)).seal(request.password.encode(), after.sealing_context())
        after = msgspec.structs.replace(after, sealed=sealed)
    records: list[ControlRecord] = [after]
    if before is not None and before.url != url:
        records.append(Tombstone.of("camstate", request.name))
    with _recorded(kafka, "cameras add", before, after):
        control_log.append(kafka, records)


def remove(kafka: KafkaSettings, name: str) -> None:
    """Remove a camera; its topics stay. Raises NotFound."""
    before = _existing(kafka, name)
    with _recorded(kafka, "cameras remove", before, None):
        control_log.append(kafka, ending_camera(name))


def set_paused(kafka: KafkaSettings, name: str, paused: bool) -> None:
    """Stop fetching events of a camera, or continue. Raises NotFound."""
    before = _existing(kafka, name)
    after = msgspec.structs.replace(before, paused=paused)
    with _recorded(kafka, f"cameras {'pause' if paused else 'resume'}", before, after):
        control_log.append(kafka, [after])


def figures(settings: Settings) -> JobFigures:
    """The metrics of the engine of this data directory, else of the configured gateway. Never raises."""
    try:
        url = "" if "metrics" in addresses(settings.home) else connection.gateway_url(settings)
    except InfrastructureError as error:
        return JobFigures(problem=str(error))
    return job_figures(settings.home, url)


def listed(control: ControlView, found: JobFigures) -> list[ListedCamera]:
    """All cameras, by name."""
    figures = {
        name: {} if found.scrape is None else found.scrape.by(f"arborcast_camera_{name}", "camera")
        for name in ("connected", "events_total", "last_event_seconds", "renewals_total", "clock_offset_seconds")
    }
    return [_listed(camera, control.cameras.state(camera.name), found, figures) for camera in control.cameras]


def _listed(
    camera: CameraRecord, known: CameraState | None, found: JobFigures, figures: Mapping[str, Mapping[str, float]]
) -> ListedCamera:
    connected, events, last, renewals, offset_s = (each.get(camera.name) for each in figures.values())
    state: CameraListState = "new" if known is None else known.state
    if camera.paused:
        state = "paused"
    elif found.scrape is None:
        state = "unknown"
    elif connected:
        state = "connected"
    return ListedCamera(
        camera=camera.name,
        url=camera.url,
        user=camera.user,
        state=state,
        since_ms=0 if known is None else known.since_ms,
        error="" if known is None else known.error,
        way="" if known is None else "push" if known.push else "pull",
        events=None if connected is None else int(events or 0),
        last_event_ms=int(1000 * (last or 0)),
        renewals=None if renewals is None else int(renewals),
        clock_offset_s=offset_s,
    )


def _device_service(settings: Settings, text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    refusal = policy_of(dataclasses.replace(settings, outbound=outbound_of(settings))).check_url(url)
    if refusal is not None:
        remedy = _REMEDIES.get(refusal.rule, "allow it with outbound.scope or outbound.allow")
        raise ConfigError(f"{without_password(url)} is not called: it {refusal}; {remedy}")
    parts = urlsplit(url)
    return url if parts.path.strip("/") else parts._replace(path=_DEVICE_SERVICE).geturl()


def _existing(kafka: KafkaSettings, name: str) -> CameraRecord:
    found = control_log.read_control(kafka).cameras.get(name)
    if found is None:
        raise NotFound(f"there is no camera {name[:100]!r}: `arborcast cameras list` lists them")
    return found


def _recorded(
    kafka: KafkaSettings, what: str, before: CameraRecord | None, after: CameraRecord | None
) -> AbstractContextManager[Sequence[str]]:
    name = (after or before or CameraRecord("", "", "")).name
    return recorded(kafka, what, [change(name, _shown(before), _shown(after))])


def _shown(camera: CameraRecord | None) -> object:
    if camera is None:
        return None
    return {"url": camera.url, "user": camera.user, "paused": camera.paused, "insecure": camera.insecure}
