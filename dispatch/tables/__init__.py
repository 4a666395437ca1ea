"""The Delta tables: columns with meaning and unit. `spec` has their locations, `delta_table` the writer."""

from __future__ import annotations

from collections.abc import Sequence

from arborcast.dispatch.tables.spec import Column, TableSpec

TOPICS = TableSpec(
    name="topics",
    help="The topic tree: one row for each topic.",
    columns=(
        Column("topic", "string", "The topic, as a canonical path."),
        Column("parent", "string", "The path above, empty for a root topic."),
        Column("name", "string", "The last step of the path."),
        Column("depth", "integer", "1 for a root topic."),
        Column("code", "string", "The topic's code, empty for none."),
        Column("message_types", "string", "QNames of its message types, separated by spaces."),
        Column("final", "boolean", "Whether topics below it are forbidden."),
        Column("retain", "boolean", "Whether its policy retains the last notification."),
        Column("priority", "integer", "Default priority of its notifications; the largest is pushed first."),
        Column("routing", "string", "Its routing policy, empty for none."),
        Column("publishers", "string", "Its publishers, separated by spaces; empty: all with the right."),
        Column("queue", "boolean", "Whether it is a work queue."),
        Column("changed_at", "timestamp", "When this state was written to the control log.", "UTC"),
    ),
    key="topic",
)

SUBSCRIPTIONS = TableSpec(
    name="subscriptions",
    help="Subscriptions: current ones, and ended ones with the reason.",
    columns=(
        Column("subscription", "string", "The subscription's id."),
        Column("state", "string", "active, paused or ended; for suspensions see suspended_at."),
        Column(
            "reason",
            "string",
            "Reason of the end: unsubscribed, expired, gone (410), removed, destroyed, or unknown.",
        ),
        Column("endpoint", "string", "The address of its pushes."),
        Column("expression", "string", "Its topic expressions as written, one per line; empty: all topics."),
        Column("selector", "string", "Their common normal form; equal ones select equal topics."),
        Column("content", "string", "Its filters on the payload, one per line."),
        Column("producer", "string", "Its filters on the producer's properties, one per line."),
        Column("types", "string", "Its message types, separated by spaces; empty: all."),
        Column(
            "form",
            "string",
            "notify, raw, legacy, or cloudevents- and the content mode; peer for a link to another engine.",
        ),
        Column("soap", "string", "SOAP version of its pushes."),
        Column("reliability", "string", "strict, adaptive or timely."),
        Column("order", "string", "acceptance, strict or none."),
        Column("priority", "integer", "Its priority among subscriptions; the largest is pushed to first."),
        Column("minimum_interval_ms", "long", "Its minimum interval; 0: none.", "ms"),
        Column("interval_per", "string", "Scope of the minimum interval: topic or subscription; empty: none."),
        Column("deadline_ms", "long", "Its deadline; 0: none.", "ms"),
        Column("deadline_per", "string", "Scope of the deadline: topic or subscription; empty: none."),
        Column("queue_capacity", "integer", "Its capacity as a server of a work queue; 0: it serves none."),
        Column("fragment_bytes", "long", "Maximum size of a part; 0: whole messages.", "bytes"),
        Column("owner", "string", "The subscriber, empty without authentication."),
        Column("pull_point", "string", "Its pull point, empty for pushes."),
        Column("created_at", "timestamp", "When it was created.", "UTC"),
        Column("terminates_at", "timestamp", "Its termination time; null: none.", "UTC", optional=True),
        Column("ended_at", "timestamp", "When it ended; null: it has not.", "UTC", optional=True),
        Column(
            "suspended_at",
            "timestamp",
            "When the engine suspended it, for a failing endpoint or expensive conditions; null: not suspended.",
            "UTC",
            optional=True,
        ),
        Column("changed_at", "timestamp", "When this state was written to the control log.", "UTC"),
    ),
    key="subscription",
)

ROUTES = TableSpec(
    name="routes",
    help="Each topic of the tree with each matching subscription, at most tables.max_routes.",
    columns=(
        Column("topic", "string", "The topic, as a canonical path."),
        Column("subscription", "string", "The subscription's id."),
        Column("expression", "string", "The normal form of the matching topic expression."),
        Column("state", "string", "active, paused or suspended."),
        Column("endpoint", "string", "The address of its pushes."),
    ),
)

RETRIES = TableSpec(
    name="retries",
    help="Waiting deliveries, each with its message.",
    columns=(
        Column("delivery", "string", "The key of the delivery in the parked log."),
        Column("notification", "string", "The notification's id."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The notification's topic, as a canonical path."),
        Column("tries", "integer", "Number of attempts."),
        Column("counted", "integer", "Attempts that count; probes without an answer do not."),
        Column("due_at", "timestamp", "Time of the next attempt; null: in its turn.", "UTC", optional=True),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("parked_at", "timestamp", "When it was parked.", "UTC"),
        Column("batch", "long", "The batch of its first match."),
        Column("partition", "integer", "Partition of the notification in its log."),
        Column("offset", "long", "Offset in that partition; within a subscription the order of delivery."),
        Column("payload", "binary", "The payload, as in notifications."),
        Column("producer", "binary", "The wsnt:ProducerReference, empty for none."),
    ),
    key="delivery",
    time="accepted_at",
)

DEAD_LETTERS = TableSpec(
    name="dead_letters",
    help="Deliveries that were given up, with their messages, until they are redriven or purged.",
    columns=(
        Column("delivery", "string", "The key of the delivery in the dead log."),
        Column("notification", "string", "The notification's id."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The notification's topic, as a canonical path."),
        Column("endpoint", "string", "The address that was pushed to."),
        Column("state", "string", "dead (given up) or expired (too old)."),
        Column("error", "string", "Class of the last failure."),
        Column("detail", "string", "The failure, as text."),
        Column("status", "integer", "The last HTTP status; 0: no answer."),
        Column("attempts", "integer", "Number of attempts."),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("ended_at", "timestamp", "When it was given up.", "UTC"),
        Column("payload", "binary", "The payload, as in notifications."),
        Column("producer", "binary", "The wsnt:ProducerReference, empty for none."),
    ),
    key="delivery",
    time="ended_at",
)

INCOMPLETE = TableSpec(
    name="incomplete",
    help="Messages in parts of old publishers that were given up.",
    columns=(
        Column("message", "string", "The message: the position of its first part, and its owner."),
        Column("identification", "string", "Its Identification in wsnt:Package."),
        Column("topic", "string", "Its topic, as a canonical path."),
        Column("owner", "string", "Its publisher, empty without authentication."),
        Column(
            "reason",
            "string",
            "time: no further part arrived; size: too large; content: the assembled message is invalid; "
            "lost: parts are no longer in the log.",
        ),
        Column("detail", "string", "For content and lost: the failure, as text."),
        Column("had", "string", "Numbers of the present parts, such as 0-3 7."),
        Column("missing", "string", "Numbers of the missing parts; 8- if the last one is unknown."),
        Column("bytes", "long", "Size of the present parts.", "bytes"),
        Column("began_at", "timestamp", "When its first part arrived.", "UTC"),
        Column("given_up_at", "timestamp", "When it was given up.", "UTC"),
    ),
    key="message",
    time="given_up_at",
)

NOTIFICATIONS = TableSpec(
    name="notifications",
    help="Every accepted notification, with its payload: the archive of the notifications log.",
    columns=(
        Column("day", "date", "Day of accepted_at; the table is partitioned by it.", "UTC"),
        Column("notification", "string", "The notification's id. Ids sort in the order of acceptance."),
        Column("topic", "string", "Its topic, as a canonical path."),
        Column("accepted_at", "timestamp", "When the gateway accepted it.", "UTC"),
        Column(
            "logged_at",
            "timestamp",
            "The timestamp of its Kafka record.",
            "UTC",
        ),
        Column("recorded_at", "timestamp", "When it was written to this table.", "UTC"),
        Column("partition", "integer", "Partition of the notifications log."),
        Column("offset", "long", "Offset in that partition."),
        Column("publisher", "string", "The publisher, empty if unknown."),
        Column("message_id", "string", "The publisher's wsa:MessageID, empty for none."),
        Column("only", "string", "Its only recipient (for a current message), empty for all."),
        Column("payload_bytes", "long", "Size of the payload.", "bytes"),
        Column("payload", "binary", "The child of wsnt:Message as a self-contained XML fragment, UTF-8."),
        Column("producer", "binary", "The wsnt:ProducerReference in the same form, empty for none."),
        Column("traceparent", "string", "The publisher's trace context (W3C), empty for none."),
        Column("control", "long", "The gateway's position in the control log at acceptance; -1: unknown."),
        Column("priority", "integer", "Its priority; the largest is pushed first."),
        Column("cause", "string", "The notification that caused its publication by a trigger, empty for none."),
        Column("hops", "integer", "Number of triggers in a row before it."),
        Column("path", "string", "The engines that it passed, GROUP/NAME, separated by blanks, empty for none."),
        Column("distribution", "string", "Its routing word, empty for everywhere."),
        Column(
            "erased",
            "string",
            "The erasure that removed payload and producer, which are empty then; null: none.",
            optional=True,
        ),
    ),
    partition_by=("day",),
    time="accepted_at",
    merged=True,
)

ATTEMPTS = TableSpec(
    name="attempts",
    help="Every attempt to deliver a notification to a subscription, and every decision about it.",
    columns=(
        Column("day", "date", "Day of started_at; the table is partitioned by it.", "UTC"),
        Column("notification", "string", "The notification's id, the same on every attempt."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The notification's topic, as a canonical path."),
        Column("endpoint", "string", "The address that was pushed to."),
        Column("number", "integer", "Number of the attempt; 0: a decision without one."),
        Column("push", "string", "The id of the push; equal for messages in one wsnt:Notify. Empty: none."),
        Column(
            "state",
            "string",
            "State of the delivery: delivered; parked: waits for a retry; dead: given up, a dead "
            "letter; expired: too old; cancelled: the subscription ended; dropped: omitted by its reliability.",
        ),
        Column("error", "string", "Class of the failure (see Errors), empty when delivered."),
        Column("detail", "string", "The failure, as text; if delivered, the text of a later result."),
        Column("status", "integer", "HTTP status; 0: no answer."),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("started_at", "timestamp", "When the push began, or the time of the decision.", "UTC"),
        Column("duration_ms", "double", "Duration of the push.", "ms"),
        Column("messages", "integer", "Number of notifications in the push."),
        Column("request_bytes", "long", "Size of the request's body, shared by all its notifications.", "bytes"),
        Column("response_bytes", "long", "Bytes of the answer's body that were read.", "bytes"),
        Column("response", "binary", "Beginning of the answer's body."),
        Column("reused", "boolean", "Whether the push used an open connection."),
        Column("batch", "long", "The batch of the attempt; -1: the redelivery."),
        Column(
            "next_at",
            "timestamp",
            "Parked: time of the next attempt; null: in its turn, or never.",
            "UTC",
            optional=True,
        ),
    ),
    partition_by=("day",),
    time="started_at",
)

DELIVERIES = TableSpec(
    name="deliveries",
    help="Every delivery that has ended. Waiting deliveries are in retries.",
    columns=(
        Column("day", "date", "Day of ended_at; the table is partitioned by it.", "UTC"),
        Column("notification", "string", "The notification's id."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The notification's topic, as a canonical path."),
        Column("endpoint", "string", "The address that was pushed to."),
        Column(
            "state",
            "string",
            "delivered, dead (given up), expired (too old), cancelled (subscription ended) or dropped (omitted).",
        ),
        Column("error", "string", "Class of the last failure, empty when delivered."),
        Column("attempts", "integer", "Number of attempts; 0: none."),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("ended_at", "timestamp", "When the last push ended, or the time of the decision.", "UTC"),
        Column("waited_ms", "double", "From acceptance to the beginning of the last push.", "ms"),
        Column("push_ms", "double", "Duration of the last push.", "ms"),
        Column("latency_ms", "double", "From acceptance to the end: waited_ms and push_ms.", "ms"),
        Column("batch", "long", "The batch of its end; -1: the redelivery."),
    ),
    partition_by=("day",),
    time="ended_at",
    merged=True,
)

ENDPOINT_HEALTH = TableSpec(
    name="endpoint_health",
    help="Every change in the health of an endpoint; the latest row is the current state.",
    columns=(
        Column("day", "date", "Day of at; the table is partitioned by it.", "UTC"),
        Column("at", "timestamp", "Time of the change.", "UTC"),
        Column("endpoint", "string", "The address of its pushes."),
        Column("breaker", "string", "closed: pushes are made; open: no pushes; half-open: a probe is in flight."),
        Column("sick", "boolean", "Whether its messages are parked and served by the redelivery."),
        Column("failures", "integer", "Failed pushes in a row."),
        Column("relapses", "integer", "Number of relapses; each doubles the time until batches serve it."),
        Column("probe_at", "timestamp", "With an open breaker: time of the next probe.", "UTC", optional=True),
    ),
    partition_by=("day",),
    time="at",
)

OPERATIONS = TableSpec(
    name="operations",
    help="Changes by operators: by command, in the console, in the directory.",
    columns=(
        Column("operation", "string", "The operation's id, and the number of the change in it."),
        Column("at", "timestamp", "When the operation began.", "UTC"),
        Column("door", "string", "command, console or directory."),
        Column("who", "string", "The user; for the directory its address."),
        Column("what", "string", "The operation, such as topics add."),
        Column("subject", "string", "What was changed: a topic, a subscription, a user, a key, a filter."),
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
    help="Erasures of payloads: conditions, requester and progress.",
    columns=(
        Column("erasure", "string", "The erasure's id."),
        Column("requested_by", "string", "The user who requested it."),
        Column("requested_at", "timestamp", "When it was requested.", "UTC"),
        Column("before", "timestamp", "It covers notifications accepted before this time.", "UTC"),
        Column("topic", "string", "The normal form of its topic expression; empty: all topics."),
        Column("notification", "string", "The id of its only notification; empty: all."),
        Column(
            "subject_sha256",
            "string",
            "SHA-256 (hexadecimal) of the text that the payloads contained, so that this table does not name the "
            "person; empty: any text.",
        ),
        Column("notifications", "long", "Rows of the table notifications whose payload was removed."),
        Column("waiting", "long", "Waiting deliveries that it ended."),
        Column("dead_letters", "long", "Dead letters that it deleted."),
        Column("pull_points", "long", "Messages that it removed from pull points."),
        Column("current_messages", "long", "Current messages of topics that it removed."),
        Column(
            "done_at",
            "timestamp",
            "When no place had a copy, except files that wait for their deletion; null: not done.",
            "UTC",
            optional=True,
        ),
        Column(
            "kept_until",
            "timestamp",
            "When the last deleted copy is gone from Kafka and files of tables; null: not done, or Kafka has no limit.",
            "UTC",
            optional=True,
        ),
    ),
    key="erasure",
    time="requested_at",
)

SLO = TableSpec(
    name="slo",
    help="Deliveries by hour and subscription against the service level objective.",
    columns=(
        Column("day", "date", "Day of hour; the table is partitioned by it.", "UTC"),
        Column(
            "hour", "timestamp", "The hour in which the first push ended, or the delivery ended without one.", "UTC"
        ),
        Column("subscription", "string", "The subscription's id."),
        Column("owner", "string", "The subscriber, empty without authentication."),
        Column("in_time", "long", "Deliveries taken within slo.latency_s after acceptance."),
        Column("late", "long", "Deliveries taken later, without a fault of the receiver."),
        Column("lost", "long", "Deliveries that ended without a push, or with a fault of the engine."),
        Column(
            "receiver",
            "long",
            "Deliveries that the receiver refused, did not answer, or delayed (away, paused, suspended); not in the "
            "objective.",
        ),
        Column(
            "held_at", "timestamp", "The last fault of the receiver, or wait for it; null: none.", "UTC", optional=True
        ),
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
