"""Tables of what is: rows are replaced and taken out as the logs say."""

from __future__ import annotations

from dispatch.tables.spec import Column, TableSpec

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
        Column("retain", "boolean", "Whether its last notification is kept for new subscribers."),
        Column("priority", "integer", "Its priority; larger goes first."),
        Column("routing", "string", "Its routing policy, empty for none."),
        Column("publishers", "string", "Who may publish, separated by spaces; empty: anyone who may at all."),
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
        Column("form", "string", "notify, raw or legacy."),
        Column("soap", "string", "SOAP version of its pushes."),
        Column("reliability", "string", "strict, adaptive or timely."),
        Column("order", "string", "acceptance, strict or none."),
        Column("priority", "integer", "Its priority; larger goes first."),
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
