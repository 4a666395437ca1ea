"""The gateway's /metrics besides requests; dashboards rely on names and units."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from arborcast.core.telemetry.metrics import Registry
from arborcast.directory.sync.sync import DirectorySync
from arborcast.engine.gateway.state import GatewayState
from arborcast.ingest.cameras.publisher import EventCounts
from arborcast.ingest.cameras.worker import CameraSession, CameraWorker
from arborcast.ingest.events.stream import EventStreams
from arborcast.ingest.federation.topology import State, Topology
from arborcast.ingest.framed.server import FramedServer
from arborcast.ingest.http.tls import Handshakes
from arborcast.ingest.operations.gateway import Gateway


def declare_gateway(
    metrics: Registry, gateway: Gateway, state: GatewayState, streams: EventStreams, leads: Callable[[], bool]
) -> None:
    """The metrics of every gateway; `leads`: whether it has the lease."""
    accepted = metrics.counter("arborcast_gateway_accepted_total", "Stored notifications.")
    append_seconds = metrics.histogram("arborcast_gateway_append_seconds", "Append of a request's notifications.")

    def acknowledged(count: int, seconds: float) -> None:
        accepted.add(by=count)
        append_seconds.observe(seconds)

    log, view, store, queues = state.notifications, state.control.view, state.pulls.view.store, state.pulls.queues
    messages = state.part_view.messages
    log.acknowledged = acknowledged
    metrics.gauge(
        "arborcast_gateway_unacknowledged_bytes", "Not acknowledged by Kafka.", lambda: log.unacknowledged_bytes
    )
    metrics.gauge("arborcast_subscriptions", "Current subscriptions.", lambda: gateway.table.statistics().subscriptions)
    metrics.gauge("arborcast_suspended_subscriptions", "Suspended ones.", lambda: len(gateway.suspensions))
    metrics.gauge("arborcast_topics", "Topics in the tree.", lambda: len(gateway.table.topics))
    metrics.gauge("arborcast_publisher_registrations", "Registered publishers.", lambda: len(gateway.registrations))
    metrics.gauge("arborcast_pull_points", "Pull points.", lambda: len(gateway.pull_points))
    metrics.gauge("arborcast_triggers", "Triggers.", lambda: len(gateway.table.triggers))
    metrics.gauge("arborcast_control_position", "Offset of the next control record to apply.", lambda: view.applied)
    metrics.gauge("arborcast_gateway_repeated_requests", "Since the start.", lambda: gateway.repeats.count)
    metrics.gauge("arborcast_pull_waiting_messages", "Messages in pull points.", lambda: store.total)
    metrics.gauge("arborcast_pull_claims", "Answers with messages in transit.", lambda: store.claims)
    metrics.gauge("arborcast_pull_memory_bytes", "Messages of pull points in memory.", lambda: store.resident_bytes)
    metrics.counted(
        "arborcast_pull_dropped_messages_total", "Since the start, by full pull points.", lambda: store.dropped
    )
    metrics.counted("arborcast_pull_expired_messages_total", "Since the start.", lambda: queues.expired)
    metrics.gauge("arborcast_pull_waiting_clients", "Waiting requests for messages.", lambda: queues.waiting_clients)
    # Messages in parts: all gateways have the same values.
    metrics.gauge("arborcast_fragments_open", "Incomplete messages.", lambda: len(messages.open))
    metrics.gauge("arborcast_fragments_held_bytes", "Parts of incomplete messages.", lambda: messages.bytes)
    metrics.gauge(
        "arborcast_fragments_assembled", "Since the start, and within the hour before it.", lambda: messages.assembled
    )
    metrics.gauge("arborcast_fragments_given_up", "As in the table incomplete.", lambda: messages.given_up)
    metrics.gauge("arborcast_gateway_ready", "1 when ready.", lambda: int(not state.obstacle()))
    metrics.gauge("arborcast_gateway_lease_held", "1 at the holder of the lease.", lambda: int(leads()))
    metrics.gauge("arborcast_gateway_inflight_bytes", "Memory of unanswered requests.", lambda: gateway.inflight.taken)
    metrics.counted(
        "arborcast_gateway_inflight_refused_total",
        "503 for lack of this memory, or for a stalled body.",
        lambda: gateway.inflight.refused,
    )
    metrics.gauge("arborcast_gateway_event_streams", "Open event streams.", lambda: streams.open)


def declare_framed(metrics: Registry, server: FramedServer) -> None:
    metrics.gauge("arborcast_framed_connections", "Connections of the framed edge.", lambda: server.connections)
    metrics.gauge(
        "arborcast_framed_unread_connections",
        "Those that do not read; their subscriptions pause.",
        lambda: server.unread,
    )
    metrics.counted_by("arborcast_framed_frames_total", "Frames of clients.", "type", lambda: server.counts.received)
    metrics.counted_by("arborcast_framed_refused_total", "ERROR frames.", "reason", lambda: server.counts.refused)
    metrics.counted("arborcast_framed_messages_total", "Messages to subscribers.", lambda: server.counts.sent)
    metrics.counted(
        "arborcast_framed_unreadable_total", "Unreadable messages, named in the log.", lambda: server.counts.unreadable
    )


def declare_cameras(metrics: Registry, worker: CameraWorker) -> None:
    """Cameras, in the gateway with the lease; events also in the gateways to which cameras push."""

    def of_sessions(read: Callable[[CameraSession], float]) -> Callable[[], dict[tuple[str, ...], float]]:
        return lambda: {(name,): read(each) for name, each in worker.sessions.items()}

    def of_events(read: Callable[[EventCounts], float]) -> Callable[[], dict[tuple[str, ...], float]]:
        return lambda: {(name,): read(each) for name, each in worker.counts.items()}

    label = ("camera",)
    metrics.gauges(
        "arborcast_camera_connected",
        "1 while events can arrive; at the gateway with the lease.",
        label,
        of_sessions(lambda each: int(each.conversation.status.state == "connected")),
    )
    metrics.gauges(
        "arborcast_camera_clock_offset_seconds",
        "The camera's clock, less the gateway's.",
        label,
        of_sessions(lambda each: round(each.conversation.offset_s, 3)),
    )
    metrics.counts(
        "arborcast_camera_renewals_total", "Renewals.", label, of_sessions(lambda each: each.conversation.renewals)
    )
    metrics.counts("arborcast_camera_events_total", "Stored events.", label, of_events(lambda each: each.events))
    metrics.counts(
        "arborcast_camera_dropped_events_total",
        "Unreadable or refused events, named in the log.",
        label,
        of_events(lambda each: each.dropped),
    )
    metrics.gauges(
        "arborcast_camera_last_event_seconds",
        "Time of the last event, since 1970.",
        label,
        of_events(lambda each: each.last),
    )


def declare_federation(metrics: Registry, topology: Callable[[], Topology]) -> None:
    """Members of the federation, in the gateway with the lease."""

    def by_state() -> dict[tuple[str, ...], float]:
        states = [each.state for each in topology().members]
        return {(state,): states.count(state) for state in get_args(State)}

    metrics.gauges("arborcast_federation_members", "Engines; at gateways without the lease 0.", ("state",), by_state)


def declare_handshakes(metrics: Registry, handshakes: Handshakes) -> None:
    metrics.counted("arborcast_gateway_tls_handshakes_begun_total", "TLS handshakes begun.", lambda: handshakes.begun)
    metrics.counted(
        "arborcast_gateway_tls_handshakes_total", "Of these, successful ones.", lambda: handshakes.succeeded
    )
    metrics.counted(
        "arborcast_gateway_tls_handshakes_refused_total",
        "Refused by tls.handshakes_per_client or ended by tls.handshakes.",
        lambda: handshakes.refused,
    )


def declare_directory(metrics: Registry, sync: DirectorySync) -> None:
    metrics.gauge(
        "arborcast_directory_connected",
        "1 when the topic directory is readable.",
        lambda: 1 if sync.status.connected else 0,
    )
    metrics.gauge("arborcast_directory_behind", "Changed topics that the directory does not have.", lambda: sync.behind)
    metrics.gauge(
        "arborcast_directory_problems", "Unusable entries, and refused changes.", lambda: len(sync.status.problems)
    )
