"""The parts of the benchmark page: which command makes each, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One run of a benchmark.

    `module` is below `benchmarks`, `limit_s` is when it counts as hung, `section` the heading that its tables go under.
    """

    name: str
    module: str
    section: str
    title: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("--quick",)
    limit_s: float = 1_800.0
    long: bool = False

    def command(self, quick: bool) -> str:
        """As anyone would type it."""
        return " ".join(["python -m", f"benchmarks.{self.module}", *self.options(quick)])

    def options(self, quick: bool) -> tuple[str, ...]:
        """What goes behind the module's name; --json is added by who runs it."""
        return (*self.arguments, *(self.quick if quick else ()))


_DISPATCH, _SMALL, _OPERATION = "Dispatch", "Parts by themselves", "Operation and recovery"

# In the order of the page, and, but for the long ones, in which they run: what people ask for first comes first.
PARTS = (
    Part("throughput", "dispatch.throughput", _DISPATCH, "Through the gateway"),
    Part("gears", "dispatch.latency", _DISPATCH, "Real time and batches"),
    Part("shifts", "dispatch.shifts", _DISPATCH, "Changes of gear"),
    Part("peers", "peers.peers", "Side by side", "Arborcast and others, in one run"),
    Part("scaling", "dispatch.scaling", "Scaling", "One quantity at a time"),
    Part("older", "dispatch.older_system", "Scaling", "The older system's experiments"),
    Part("executors", "dispatch.executors", "Scaling", "Task slots and executors"),
    Part("transports", "dispatch.transports", _DISPATCH, "libcurl and requests-futures, end to end"),
    Part(
        "burst-single",
        "dispatch.burst",
        _DISPATCH,
        "From the log alone, one message per request",
        quick=("--count", "2000", "--rounds", "1"),
    ),
    Part(
        "burst-shared",
        "dispatch.burst",
        _DISPATCH,
        "From the log alone, waiting messages share requests",
        arguments=("--form", "notify", "--count", "50000"),
        quick=("--count", "4000", "--rounds", "1"),
    ),
    Part("prototype", "dispatch.prototype", _DISPATCH, "The engine beside a bare prototype"),
    Part("subscribers", "dispatch.subscribers", _DISPATCH, "Sick subscribers, and many of them"),
    Part("churn", "dispatch.churn", _DISPATCH, "Changes of subscriptions"),
    Part("fairness", "dispatch.fairness", _DISPATCH, "Lanes served in turn", quick=("--quick",)),
    Part("priority", "dispatch.priority", _DISPATCH, "What is urgent, behind what waits"),
    Part("subscription-qos", "dispatch.subscription_qos", _DISPATCH, "Minimum intervals, deadlines, types"),
    Part("fragments", "dispatch.fragments", _DISPATCH, "Large messages, whole and in parts"),
    Part("stages", "dispatch.stages", _DISPATCH, "A worker's steps"),
    Part("view", "dispatch.view", _DISPATCH, "Bringing the workers up to date"),
    Part("gateway", "gateway.gateway", "Gateway and clients", "Accepting"),
    Part("floor", "gateway.floor", "Gateway and clients", "A Notify beside its floor"),
    Part("new-topics", "gateway.new_topics", "Gateway and clients", "Topics that nobody has named"),
    Part("framed", "gateway.framed", "Gateway and clients", "The framed edge beside SOAP"),
    Part("zeromq", "gateway.zeromq", "Gateway and clients", "The ZeroMQ edges beside raw sockets"),
    Part("client", "gateway.client", "Gateway and clients", "Publishing from Python"),
    Part("pulling", "gateway.pulling", "Gateway and clients", "Pull points"),
    Part(
        "engine",
        "operation.engine",
        _OPERATION,
        "The engine as a whole",
        quick=("--starts", "2", "--idle-seconds", "5", "--lone-seconds", "5"),
    ),
    Part("redelivery", "operation.redelivery", _OPERATION, "Redelivery", long=True),
    Part("parked-elsewhere", "operation.parked_elsewhere", _OPERATION, "A million parked elsewhere", long=True),
    Part("triggers", "operation.triggers", _OPERATION, "A chain of triggers"),
    Part("queues", "operation.queues", _OPERATION, "Work queues"),
    Part("console", "operation.console", _OPERATION, "The web console over a million topics"),
    Part("federation", "operation.federation", _OPERATION, "Over a link to another engine"),
    Part("reliabilities", "operation.reliabilities", _OPERATION, "Away, under each reliability", long=True),
    Part(
        "broker-loss",
        "operation.broker_loss",
        _OPERATION,
        "A broker of three is killed under load",
        quick=("--seconds", "5"),
    ),
    Part("recovery", "operation.recovery", _OPERATION, "Kills under load"),
    Part("cluster", "operation.cluster", _OPERATION, "A part of a cluster is lost"),
    Part("audit", "operation.audit", _OPERATION, "Audit", long=True),
    Part("recording", "operation.recording", _OPERATION, "What recording costs", long=True),
    Part("tables", "operation.tables", _OPERATION, "Recording, and questions to the tables", long=True),
    Part("signing", "dispatch.signing", _SMALL, "Signing pushes"),
    Part("security", "gateway.security", "Gateway and clients", "What security costs, and overload", long=True),
    Part("control-replay", "model.control_replay", _SMALL, "Reading the control log"),
    Part("ldap", "model.ldap_directory", _SMALL, "Topic directory"),
    Part("topics", "model.topics", _SMALL, "Topics and expressions"),
    Part("routing", "model.routing", _SMALL, "Routing tables", long=True),
)

SECTIONS = tuple(dict.fromkeys(part.section for part in PARTS))


def chosen(names: list[str] | None, long: bool = True) -> list[Part]:
    """The parts of these names; all, the long ones last or not at all, when none is given. Raises KeyError."""
    if not names:
        return sorted((part for part in PARTS if long or not part.long), key=lambda part: part.long)
    known = {part.name: part for part in PARTS}
    return [known[name] for name in names]
