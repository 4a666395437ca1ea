"""The Delta tables: which columns, what each means and in which unit. Where they are is in `spec`, the writer of one in
`delta_table`."""

from __future__ import annotations

from collections.abc import Sequence

from arborcast.dispatch.tables.spec import Column, TableSpec

TOPICS = TableSpec(
    name="topics",
    help="The topic tree: one row for each topic that is there now.",
    columns=(
        Column("topic", "string", "The topic, as a canonical path."),
        Column("parent", "string", "The path above, empty for a root topic."),
        Column("name", "string", "The last step of the path."),
        Column("depth", "integer", "1 for a root topic."),
        Column("code", "string", "The topic's code, empty for none."),
        Column("message_types", "string", "QNames of the messages that it carries, separated by spaces."),
        Column("final", "boolean", "Whether no topic may be added below it."),
        Column("retain", "boolean", "Whether its own policy keeps its last notification."),
        Column("priority", "integer", "Of its notifications whose publisher says none; larger goes first."),
        Column("routing", "string", "Its routing policy, empty for none."),
        Column("publishers", "string", "Who may publish, separated by spaces; empty: anyone who may at all."),
        Column("queue", "boolean", "Whether it is a work queue."),
        Column("changed_at", "timestamp", "When this state of it was written to the control log.", "UTC"),
    ),
    key="topic",
)

SUBSCRIPTIONS = TableSpec(
    name="subscriptions",
    help="Subscriptions: current ones, and ended ones with the reason.",
    columns=(
        Column("subscription", "string", "The subscription's id."),
        Column("state", "string", "active, paused or ended; whether it is suspended beside that: suspended_at."),
        Column(
            "reason",
            "string",
            "Ended: unsubscribed, expired, gone (the subscriber said so), removed, destroyed, or unknown.",
        ),
        Column("endpoint", "string", "The address that is pushed to."),
        Column("expression", "string", "Its topic filters as they were written, one per line; empty: all topics."),
        Column("selector", "string", "The normal form of them together: equal ones select equal topics."),
        Column("content", "string", "Its filters on the payload, one per line."),
        Column("producer", "string", "Its filters on the producer's properties, one per line."),
        Column("types", "string", "The types of message that it wants, separated by spaces; empty: all."),
        Column("form", "string", "notify, raw or legacy; peer for a link to another engine."),
        Column("soap", "string", "SOAP version of its pushes."),
        Column("reliability", "string", "strict, adaptive or timely."),
        Column("order", "string", "acceptance, strict or none."),
        Column("priority", "integer", "Its priority among subscriptions: the larger is pushed to first."),
        Column("minimum_interval_ms", "long", "How far apart messages are that it gets; 0: it gets all.", "ms"),
        Column("interval_per", "string", "topic or subscription: what that counts for; empty: it gets all."),
        Column("deadline_ms", "long", "After how long without a message it is told so; 0: never.", "ms"),
        Column("deadline_per", "string", "topic or subscription: what that counts for; empty: it is never told."),
        Column("queue_capacity", "integer", "How many requests of a queue it takes at a time; 0: it serves none."),
        Column("fragment_bytes", "long", "What is larger leaves in parts of so many bytes; 0: whole.", "bytes"),
        Column("owner", "string", "Who subscribed, empty when nobody had to say."),
        Column("pull_point", "string", "The pull point that it fills, empty for one that is pushed to."),
        Column("created_at", "timestamp", "When it was made.", "UTC"),
        Column("terminates_at", "timestamp", "When it ends by itself; null: never.", "UTC", optional=True),
        Column("ended_at", "timestamp", "When it ended; null while it has not.", "UTC", optional=True),
        Column(
            "suspended_at",
            "timestamp",
            "When the engine suspended it: its endpoint had failed for too long, or its conditions cost too much; "
            "null: it is not suspended.",
            "UTC",
            optional=True,
        ),
        Column("changed_at", "timestamp", "When this state of it was written to the control log.", "UTC"),
    ),
    key="subscription",
)

ROUTES = TableSpec(
    name="routes",
    help="Who gets what: each topic of the tree with each subscription that it goes to, at most tables.max_routes.",
    columns=(
        Column("topic", "string", "The topic, as a canonical path."),
        Column("subscription", "string", "The subscription's id."),
        Column("expression", "string", "The normal form of the filter through which they meet."),
        Column("state", "string", "active, paused or suspended: whether notifications are pushed through it now."),
        Column("endpoint", "string", "The address that is pushed to."),
    ),
)

RETRIES = TableSpec(
    name="retries",
    help="Deliveries that wait to be tried (again), each with all that a push needs.",
    columns=(
        Column("delivery", "string", "Names the delivery: its key in the parked log."),
        Column("notification", "string", "The notification's id."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The notification's topic, as a canonical path."),
        Column("tries", "integer", "How often it was tried."),
        Column("counted", "integer", "How many of them count against it; an open breaker's do not."),
        Column("due_at", "timestamp", "When it may be tried again; null: when its turn comes.", "UTC", optional=True),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("parked_at", "timestamp", "When it was parked.", "UTC"),
        Column("batch", "long", "The batch that met it first."),
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
    help="Deliveries that were given up, with the whole message, until they are sent again or thrown away.",
    columns=(
        Column("delivery", "string", "Names the delivery: its key in the dead log."),
        Column("notification", "string", "The notification's id."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The notification's topic, as a canonical path."),
        Column("endpoint", "string", "The address that was pushed to."),
        Column("state", "string", "dead (given up) or expired (too old)."),
        Column("error", "string", "Class of the last failure."),
        Column("detail", "string", "What went wrong, in words."),
        Column("status", "integer", "The last HTTP status; 0 when there was no answer."),
        Column("attempts", "integer", "How often it was tried."),
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
    help="Messages of old publishers that came in parts and were given up, because not all came or for what they are.",
    columns=(
        Column("message", "string", "Names the message: where its first part was in the log, and whose it is."),
        Column("identification", "string", "What its publisher calls it: Identification in wsnt:Package."),
        Column("topic", "string", "Its topic, as a canonical path."),
        Column("owner", "string", "Who sent it, empty when nobody had to say."),
        Column(
            "reason",
            "string",
            "time: no further part came; size: it is too large; content: its parts make no message that is taken; "
            "lost: parts are not in the log any more.",
        ),
        Column("detail", "string", "For content and lost: what is wrong, in words."),
        Column("had", "string", "The numbers of the parts that came, such as 0-3 7."),
        Column("missing", "string", "Those that did not; 8- where the last one is not known."),
        Column("bytes", "long", "Size of the parts that came.", "bytes"),
        Column("began_at", "timestamp", "When its first part came.", "UTC"),
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
            "When the broker took it into the log: the time stamp of its Kafka record.",
            "UTC",
        ),
        Column("recorded_at", "timestamp", "When it was written to this table.", "UTC"),
        Column("partition", "integer", "Partition of the notifications log."),
        Column("offset", "long", "Offset in that partition."),
        Column("publisher", "string", "Who published it, empty when the publisher did not say."),
        Column("message_id", "string", "What the publisher called it (wsa:MessageID), empty for none."),
        Column("only", "string", "The one subscription that it is for (a topic's current message), empty for all."),
        Column("payload_bytes", "long", "Size of the payload.", "bytes"),
        Column("payload", "binary", "The child of wsnt:Message as a self-contained XML fragment, UTF-8."),
        Column("producer", "binary", "The wsnt:ProducerReference in the same form, empty for none."),
        Column("traceparent", "string", "The publisher's trace context (W3C), empty for none."),
        Column("control", "long", "Where the control log stood for who accepted it; -1: not known."),
        Column("priority", "integer", "Its priority; of what waits for a subscription the larger is pushed first."),
        Column("cause", "string", "The notification because of which a trigger published it, empty for none."),
        Column("hops", "integer", "How many triggers in a row are behind it."),
        Column("path", "string", "The engines that it has passed, as GROUP/NAME with blanks between, empty for none."),
        Column("distribution", "string", "The word of routing that says how far it goes, empty for everywhere."),
    ),
    partition_by=("day",),
    time="accepted_at",
)

ATTEMPTS = TableSpec(
    name="attempts",
    help="Every try to bring a notification to a subscription, and every decision about it, one row each.",
    columns=(
        Column("day", "date", "Day of started_at; the table is partitioned by it.", "UTC"),
        Column("notification", "string", "The notification's id, the same on every attempt."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The notification's topic, as a canonical path."),
        Column("endpoint", "string", "The address that was pushed to."),
        Column("number", "integer", "1 for the first try of this delivery, 2 for the next; 0: decided without any."),
        Column("push", "string", "The HTTP request; rows of equal value travelled in one wsnt:Notify. Empty: none."),
        Column(
            "state",
            "string",
            "What became of the delivery: delivered; parked: waits for another try; dead: given up, kept as a dead "
            "letter; expired: too old; cancelled: the subscription is over; dropped: left out, as its subscription's "
            "reliability has it.",
        ),
        Column("error", "string", "Class of the failure, empty when delivered; see dispatch/logs/attempts.py."),
        Column("detail", "string", "What went wrong, in words; when delivered, only what the receiver said later."),
        Column("status", "integer", "HTTP status; 0 when there was no answer."),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("started_at", "timestamp", "When the push began, or the decision fell.", "UTC"),
        Column("duration_ms", "double", "From the push's beginning to its end.", "ms"),
        Column("messages", "integer", "How many notifications travelled in this push."),
        Column("request_bytes", "long", "Size of the request's body, shared by all its notifications.", "bytes"),
        Column("response_bytes", "long", "How much of the answer's body was read.", "bytes"),
        Column("response", "binary", "Beginning of the answer's body."),
        Column("reused", "boolean", "Whether the push went over a connection that was already open."),
        Column("batch", "long", "The batch of the dispatch query that made the attempt; -1: the redelivery did."),
        Column(
            "next_at",
            "timestamp",
            "Parked: when it may be tried again; null when that is as soon as its turn comes, or never.",
            "UTC",
            optional=True,
        ),
    ),
    partition_by=("day",),
    time="started_at",
)

DELIVERIES = TableSpec(
    name="deliveries",
    help="Every delivery that has ended, one row each. What still waits is in retries.",
    columns=(
        Column("day", "date", "Day of ended_at; the table is partitioned by it.", "UTC"),
        Column("notification", "string", "The notification's id."),
        Column("subscription", "string", "The subscription's id."),
        Column("topic", "string", "The notification's topic, as a canonical path."),
        Column("endpoint", "string", "The address that was pushed to."),
        Column(
            "state",
            "string",
            "delivered, dead (given up), expired (too old), cancelled (subscription over) or dropped (left out).",
        ),
        Column("error", "string", "Class of the last failure, empty when delivered."),
        Column("attempts", "integer", "How many tries it took; 0: it ended without any."),
        Column("accepted_at", "timestamp", "When the gateway accepted the notification.", "UTC"),
        Column("ended_at", "timestamp", "When the last push ended, or the decision fell.", "UTC"),
        Column("waited_ms", "double", "From acceptance to the beginning of the last push.", "ms"),
        Column("push_ms", "double", "How long the last push took.", "ms"),
        Column("latency_ms", "double", "From acceptance to the end: waited_ms and push_ms.", "ms"),
        Column("batch", "long", "The batch of the dispatch query that ended it; -1: the redelivery did."),
    ),
    partition_by=("day",),
    time="ended_at",
    merged=True,
)

ENDPOINT_HEALTH = TableSpec(
    name="endpoint_health",
    help="Every change in the health of an endpoint; the latest row of an endpoint is how it is now.",
    columns=(
        Column("day", "date", "Day of at; the table is partitioned by it.", "UTC"),
        Column("at", "timestamp", "When the change was seen.", "UTC"),
        Column("endpoint", "string", "The address that is pushed to."),
        Column("breaker", "string", "closed: is pushed to; open: is left alone; half-open: a probe is under way."),
        Column("sick", "boolean", "Whether its messages go through the parking lane, where no batch waits for them."),
        Column("failures", "integer", "Pushes in a row that did not reach it."),
        Column("relapses", "integer", "How often it fell ill again; doubles the time until it is trusted."),
        Column("probe_at", "timestamp", "With an open breaker: when it is tried next.", "UTC", optional=True),
    ),
    partition_by=("day",),
    time="at",
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
)
