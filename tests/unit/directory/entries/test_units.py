"""Trees of organizational units read as topics."""

from __future__ import annotations

from arborcast.directory.entries.dn import parse_dn
from arborcast.directory.entries.entries import Entry
from arborcast.directory.entries.units import Units, read_units
from arborcast.topic_model.topics import TopicPath

BASE = "ou=all_test,dc=wsn,dc=com"


def unit(dn: str, *classes: str, description: str = "") -> Entry:
    attributes = {"objectclass": tuple(each.encode() for each in (classes or ("top", "organizationalUnit")))}
    if description:
        attributes["description"] = (description.encode(),)
    return Entry.of(parse_dn(f"{dn},{BASE}" if dn else BASE), attributes)


def found(*entries: Entry, root: str = "") -> Units:
    return read_units(entries, parse_dn(BASE), TopicPath(root) if root else None)


def paths(units: Units) -> list[str]:
    return [each.path for each in units.topics]


def problems(units: Units) -> list[tuple[str, str]]:
    return [(each.kind.value, each.dn.removesuffix(f",{BASE}")) for each in units.problems]


def test_units_are_topics_whatever_order_they_come_in() -> None:
    entries = [
        unit("ou=alarm1,ou=alarm", description="5"),
        unit("ou=alarm", description="2"),
        unit("", description="1"),
    ]
    assert paths(found(*entries)) == ["alarm", "alarm/alarm1"]
    below = found(*entries, root="all")
    assert [(each.path, each.code) for each in below.topics] == [
        ("all", "1"),
        ("all/alarm", "2"),
        ("all/alarm/alarm1", "5"),
    ]
    assert paths(found(*entries, root="{urn:old}all")) == [
        "{urn:old}all",
        "{urn:old}all/alarm",
        "{urn:old}all/alarm/alarm1",
    ]
    assert (below.problems, below.others) == ((), 0)


def test_what_can_be_no_topic_is_named_with_what_is_below_it_and_the_rest_comes() -> None:
    units = found(
        unit("ou=1st"),
        unit("ou=b,ou=1st"),
        unit("ou=c,ou=b,ou=1st"),
        unit("ou=good"),
        unit("ou=hall 1,ou=good"),
        unit("cn=1+ou=twice,ou=good"),
        unit("cn=2+ou=twice,ou=good"),
    )
    assert paths(units) == ["good", "good/twice"]
    assert problems(units) == [
        ("illegal-name", "ou=1st"),
        ("orphan", "ou=b,ou=1st"),
        ("illegal-name", "ou=hall 1,ou=good"),
        ("duplicate-topic", "cn=2+ou=twice,ou=good"),
        ("orphan", "ou=c,ou=b,ou=1st"),
    ]
    assert "'1st' is not a legal topic name" in str(units.problems[0])


def test_what_is_no_unit_is_counted_with_what_is_below_it() -> None:
    units = found(
        unit("cn=admin", "person"),
        unit("ou=below,cn=admin"),
        unit("ou=deeper,ou=below,cn=admin"),
        unit("ou=alias", "alias", "extensibleObject"),
        unit("ou=elsewhere", "referral", "extensibleObject"),
        Entry.of(parse_dn("ou=other,dc=elsewhere"), {}),
        unit("ou=a"),
    )
    assert (paths(units), units.problems, units.others) == (["a"], (), 5)


def test_a_description_is_a_code_when_it_is_one_word_and_nobody_has_it() -> None:
    units = found(
        unit("ou=a", description="7"),
        unit("ou=b", description="Alarms of hall 7"),
        unit("ou=c", description=" 8 "),
        unit("ou=d", description="7"),
        unit("ou=e", description="x" * 300),
    )
    assert [(each.path, each.code) for each in units.topics] == [("a", "7"), ("b", ""), ("c", "8"), ("d", "")]
    assert problems(units) == [("duplicate-code", "ou=d"), ("illegal-name", "ou=e")]


def test_a_tree_may_be_as_deep_as_topics_may() -> None:
    entries = [unit(",".join(f"ou=n{level}" for level in range(depth, 0, -1))) for depth in range(1, 70)]
    units = found(*entries)
    assert len(units.topics) == 64
    assert problems(units)[0][0] == "illegal-name"
    assert {kind for kind, _ in problems(units)[1:]} == {"orphan"}


def test_what_has_no_counterpart_here_is_named() -> None:
    alarm = unit("ou=alarm", description="2")
    alarm = Entry.of(alarm.dn, {**alarm.attributes, "policy": (b"<policy/>",), "entryuuid": (b"1",)})
    hall = unit("ou=hall", description="the first hall")
    assert found(alarm, hall, unit("")).left_out == {"policy": 1, "description": 1}
