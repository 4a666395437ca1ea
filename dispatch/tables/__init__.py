"""The Delta tables: columns with meaning and unit. `spec` has their locations, `delta_table` the writer."""

from __future__ import annotations

from collections.abc import Sequence

from arborcast.dispatch.tables.spec import Column, TableSpec

TOPICS = TableSpec(
    name="topics",
    help="The topic tree.",
    columns=(
        Column("topic", "string", "The topic, as a canonical path."),
        Column("parent", "string", "The path above."),
        Column("name", "string", "The last step of the path."),
        Column("depth", "integer", "1 for a root topic."),
        Column("code", "string", "The topic's code."),
        Column("message_types", "string", "QNames, separated by spaces."),
        Column("final", "boolean", "No topics below it are allowed."),
        Column("retain", "boolean", "Retains the last notification."),
        Column("priority", "integer", "Default of its notifications."),
        Column("routing", "string", "Its routing policy."),
        Column("publishers", "string", "Separated by spaces."),
        Column("queue", "boolean", "It is a work queue."),
        Column("changed_at", "timestamp", "When the control log got this state.", "UTC"),
    ),
    key="topic",
)

SUBSCRIPTIONS = TableSpec(
    name="subscriptions",
    help="Current and ended subscriptions.",
    columns=(
        Column("subscription", "string", "The subscription's id."),
        Column("state", "string", "active, paused or ended; for suspensions see suspended_at."),
        Column("reason", "string", "unsubscribed, expired, gone (410), removed, destroyed, or unknown."),
        Column("endpoint", "string", "The address of the pushes."),
        Column("expression", "string", "Its topic expressions, one per line."),
        Column("selector", "string", "Their common normal form."),
        Column("content", "string", "Its filters on the payload, one per line."),
        Column("producer", "string", "Its filters on the producer's properties, one per line."),
        Column("types", "string", "Its message types, separated by spaces."),
        Column("form", "string", "notify, raw, legacy, cloudevents- and the content mode, or peer (another engine)."),
        Column("soap", "string", "SOAP version of its pushes."),
        Column("reliability", "string", "strict, adaptive or timely."),
        Column("order", "string", "acceptance, strict or none."),
        Column("priority", "integer", "Its priority; the largest is pushed to first."),
        Column("minimum_interval_ms", "long", "Its minimum interval; 0: none.", "ms"),
        Column("interval_per", "string", "topic or subscription."),
        Column("deadline_ms", "long", "Its deadline; 0: none.", "ms"),
        Column("deadline_per", "string", "topic or subscription."),
        Column("queue_capacity", "integer", "As a worker of a work queue; 0: none."),
        Column("fragment_bytes", "long", "Of a part; 0: whole messages.", "bytes"),
        Column("owner", "string", "The authenticated subscriber."),
        Column("pull_point", "string", "Its pull point, empty for pushes."),
        Column("created_at", "timestamp", "When it was created.", "UTC"),
        Column("terminates_at", "timestamp", "Its termination time.", "UTC", optional=True),
        Column("ended_at", "timestamp", "When it ended.", "UTC", optional=True),
        Column("suspended_at", "timestamp", "When it was suspended.", "UTC", optional=True),
        Column("changed_at", "timestamp", "When the control log got this state.", "UTC"),
    ),
    key="subscription",
)

ROUTES = TableSpec(
    name="routes",
    help="Each topic with each matching subscription.",
    columns=(
        Column("topic", "string", "The topic, as a canonical path."),
        Column("subscription", "string", "The subscription's id."),
        Column("expression", "string", "Normal form of the matching topic expression."),
        Column("state", "string", "active, paused or suspended."),
        Column("endpoint", "string", "The address of the pushes."),
    ),
)

RETRIES = TableSpec(
    name="retries",
    help="Waiting deliveries; their messages are in notifications.",
    columns=(
        Column("delivery", "string", "The key of the delivery in the parked log."),
        Column("notification", "string", "The notification's id."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The topic, as a canonical path."),
        Column("tries", "integer", "Number of attempts."),
        Column("counted", "integer", "Of these, without unanswered probes."),
        Column("due_at", "timestamp", "Time of the next attempt; null: in its turn.", "UTC", optional=True),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("parked_at", "timestamp", "When it was parked.", "UTC"),
        Column("batch", "long", "The batch of its first match."),
        Column("partition", "integer", "Partition of the notification."),
        Column("offset", "long", "Offset in it: the order of delivery."),
    ),
    key="delivery",
    time="accepted_at",
)

DEAD_LETTERS = TableSpec(
    name="dead_letters",
    help="Given-up deliveries; their messages are in notifications.",
    columns=(
        Column("delivery", "string", "The key of the delivery in the dead log."),
        Column("notification", "string", "The notification's id."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The topic, as a canonical path."),
        Column("endpoint", "string", "The address of the pushes."),
        Column("state", "string", "dead or expired."),
        Column("error", "string", "Class of the last failure."),
        Column("detail", "string", "The failure, as text."),
        Column("status", "integer", "The last HTTP status; 0: no answer."),
        Column("attempts", "integer", "Number of attempts."),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("ended_at", "timestamp", "When it was given up.", "UTC"),
    ),
    key="delivery",
    time="ended_at",
)

INCOMPLETE = TableSpec(
    name="incomplete",
    help="Given-up messages in parts.",
    columns=(
        Column("message", "string", "Position of its first part, and owner."),
        Column("identification", "string", "Its Identification in wsnt:Package."),
        Column("topic", "string", "The topic, as a canonical path."),
        Column("owner", "string", "Its authenticated publisher."),
        Column(
            "reason",
            "string",
            "time (no further part), size (too large), content (invalid message), or lost (parts have left the log).",
        ),
        Column("detail", "string", "The failure, as text."),
        Column("received", "string", "Received parts, such as 0-3 7."),
        Column("missing", "string", "Missing parts; 8- if the last one is unknown."),
        Column("bytes", "long", "Of the present parts.", "bytes"),
        Column("began_at", "timestamp", "When its first part arrived.", "UTC"),
        Column("given_up_at", "timestamp", "When it was given up.", "UTC"),
    ),
    key="message",
    time="given_up_at",
)

NOTIFICATIONS = TableSpec(
    name="notifications",
    help="Accepted notifications.",
    columns=(
        Column("day", "date", "Day of accepted_at.", "UTC"),
        Column("notification", "string", "The notification's id."),
        Column("topic", "string", "The topic, as a canonical path."),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("logged_at", "timestamp", "Time of its Kafka record.", "UTC"),
        Column("recorded_at", "timestamp", "Time in this table.", "UTC"),
        Column("partition", "integer", "Of the notifications log."),
        Column("offset", "long", "Offset in that partition."),
        Column("publisher", "string", "The publisher."),
        Column("message_id", "string", "The publisher's wsa:MessageID."),
        Column("only", "string", "Only recipient, of a current message."),
        Column("payload_bytes", "long", "Size of the payload.", "bytes"),
        Column("payload", "binary", "The child of wsnt:Message, an XML fragment in UTF-8."),
        Column("producer", "binary", "The wsnt:ProducerReference, likewise."),
        Column("traceparent", "string", "The publisher's trace context (W3C)."),
        Column("control", "long", "Position in the control log; -1: unknown."),
        Column("priority", "integer", "Its priority; the largest is pushed first."),
        Column("cause", "string", "Its cause, by a trigger."),
        Column("hops", "integer", "Triggers in a row before it."),
        Column("path", "string", "Engines before this one, GROUP/NAME."),
        Column("distribution", "string", "Its routing word."),
        Column("erased", "string", "The erasure that removed payload and producer.", optional=True),
    ),
    partition_by=("day",),
    time="accepted_at",
    merged=True,
)

ATTEMPTS = TableSpec(
    name="attempts",
    help="Every attempt, and every decision without one.",
    columns=(
        Column("day", "date", "Day of started_at.", "UTC"),
        Column("notification", "string", "The notification's id."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The topic, as a canonical path."),
        Column("endpoint", "string", "The address of the pushes."),
        Column("number", "integer", "Number of the attempt; 0: a decision without one."),
        Column("push", "string", "The id of the push, one for all messages in it."),
        Column("state", "string", "delivered, parked, dead, expired, cancelled or dropped."),
        Column("error", "string", "See Errors; empty when delivered."),
        Column("detail", "string", "The failure, or the text of a later result."),
        Column("status", "integer", "HTTP status; 0: no answer."),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("started_at", "timestamp", "Beginning of the push, or the decision.", "UTC"),
        Column("duration_ms", "double", "Duration of the push.", "ms"),
        Column("messages", "integer", "Number of notifications in the push."),
        Column("request_bytes", "long", "Size of the request's body.", "bytes"),
        Column("response_bytes", "long", "Read bytes of the answer's body.", "bytes"),
        Column("response", "binary", "Beginning of the answer's body."),
        Column("reused", "boolean", "The push used an open connection."),
        Column("batch", "long", "The batch of the attempt; -1: the redelivery."),
        Column("next_at", "timestamp", "The next attempt; null: in its turn, or never.", "UTC", optional=True),
        Column("lapsed", "boolean", "Expired without a dead letter.", optional=True),
    ),
    partition_by=("day",),
    time="started_at",
)

DELIVERIES = TableSpec(
    name="deliveries",
    help="Ended deliveries; waiting ones are in retries.",
    columns=(
        Column("day", "date", "Day of ended_at.", "UTC"),
        Column("notification", "string", "The notification's id."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The topic, as a canonical path."),
        Column("endpoint", "string", "The address of the pushes."),
        Column("state", "string", "delivered, dead, expired, cancelled or dropped."),
        Column("error", "string", "Class of the last failure, empty when delivered."),
        Column("attempts", "integer", "Number of attempts; 0: none."),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("ended_at", "timestamp", "End of the last push, or the decision.", "UTC"),
        Column("waited_ms", "double", "From acceptance to the last push.", "ms"),
        Column("push_ms", "double", "Duration of the last push.", "ms"),
        Column("latency_ms", "double", "waited_ms and push_ms.", "ms"),
        Column("batch", "long", "The batch of its end; -1: the redelivery."),
    ),
    partition_by=("day",),
    time="ended_at",
    merged=True,
)

ENDPOINT_HEALTH = TableSpec(
    name="endpoint_health",
    help="Changes of an endpoint's health; the latest row is its state.",
    columns=(
        Column("day", "date", "Day of at.", "UTC"),
        Column("at", "timestamp", "Time of the change.", "UTC"),
        Column("endpoint", "string", "The address of the pushes."),
        Column("breaker", "string", "closed, open (no pushes) or half-open (a probe is in flight)."),
        Column("sick", "boolean", "The redelivery serves it."),
        Column("failures", "integer", "Failed pushes in a row."),
        Column("relapses", "integer", "Each doubles the time until batches serve it."),
        Column("probe_at", "timestamp", "The next probe.", "UTC", optional=True),
    ),
    partition_by=("day",),
    time="at",
)

OPERATIONS = TableSpec(
    name="operations",
    help="Changes by operators.",
    columns=(
        Column("operation", "string", "Its id, and the number of the change."),
        Column("at", "timestamp", "When the operation began.", "UTC"),
        Column("interface", "string", "command, console or directory."),
        Column("actor", "string", "The user; for the directory its address."),
        Column("action", "string", "Such as topics add."),
        Column("subject", "string", "The changed object."),
        Column("before", "string", "Its value before as JSON, without secrets; empty: there was none."),
        Column("after", "string", "Its value after; empty: it was removed."),
        Column("more", "long", "Number of further changes of the operation without rows; 0 except in its first row."),
        Column("result", "string", "The result, or the reason of the failure; empty: its process ended before."),
    ),
    key="operation",
    time="at",
)

ERASURES = TableSpec(
    name="erasures",
    help="Erasures of payloads.",
    columns=(
        Column("erasure", "string", "The erasure's id."),
        Column("requested_by", "string", "The user who requested it."),
        Column("requested_at", "timestamp", "When it was requested.", "UTC"),
        Column("before", "timestamp", "Covers earlier notifications.", "UTC"),
        Column("topic", "string", "Normal form of its topic expression."),
        Column("notification", "string", "Its only notification."),
        Column("subject_sha256", "string", "SHA-256 (hexadecimal) of the text in the payloads."),
        Column("notifications", "long", "Emptied rows of the table notifications."),
        Column("waiting", "long", "Ended waiting deliveries."),
        Column("dead_letters", "long", "Deleted dead letters."),
        Column("pull_points", "long", "Messages removed from pull points."),
        Column("current_messages", "long", "Removed current messages."),
        Column(
            "done_at", "timestamp", "When only files that wait for their deletion had copies.", "UTC", optional=True
        ),
        Column(
            "kept_until",
            "timestamp",
            "When Kafka and files of tables have deleted the last copy; null: not done, or no limit.",
            "UTC",
            optional=True,
        ),
    ),
    key="erasure",
    time="requested_at",
)

SLO = TableSpec(
    name="slo",
    help="Deliveries and attempts by hour and subscription.",
    columns=(
        Column("day", "date", "Day of hour.", "UTC"),
        Column("hour", "timestamp", "Of the end of the first push, or of the delivery.", "UTC"),
        Column("subscription", "string", "The subscription's id."),
        Column("owner", "string", "The authenticated subscriber."),
        Column("in_time", "long", "Taken within slo.latency_s after acceptance."),
        Column("late", "long", "Taken later, without a fault of the receiver."),
        Column("lost", "long", "Ended without a push, or with a fault of the engine."),
        Column("receiver", "long", "Refused, not answered or delayed by the receiver; not in the objective."),
        Column("held_at", "timestamp", "The last fault of the receiver, or wait for it.", "UTC", optional=True),
        Column("delivered", "long", "Delivered attempts.", optional=True),
        Column("failed", "long", "Failed attempts.", optional=True),
    ),
    partition_by=("day",),
    time="hour",
    merged=True,
)

TABLES: Sequence[TableSpec] = (
    TOPICS,
    SUBSCRIPTIONS,
    ROUTES,
    NOTIFICATIONS,
    ATTEMPTS,
    DELIVERIES,
    RETRIES,
    DEAD_LETTERS,
    ENDPOINT_HEALTH,
    INCOMPLETE,
    OPERATIONS,
    ERASURES,
    SLO,
)
