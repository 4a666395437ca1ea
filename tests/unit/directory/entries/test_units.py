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


def codes(units: Units) -> dict[str, str]:
    return {each.path: each.code for each in units.topics}


def problems(units: Units) -> list[tuple[str, str]]:
    return [(each.kind.value, each.dn.removesuffix(f",{BASE}")) for each in units.problems]


def test_units_are_topics_in_any_order() -> None:
    entries = [
        unit("ou=alarm1,ou=alarm", description="5"),
        unit("ou=alarm", description="2"),
        unit("", description="1"),
    ]
    assert codes(found(*entries)) == {"alarm": "2", "alarm/alarm1": "5"}
    below = found(*entries, root="all")
    assert codes(below) == {"all": "1", "all/alarm": "2", "all/alarm/alarm1": "5"}
    old = found(*entries, root="{urn:old}all")
    assert [*codes(old)] == ["{urn:old}all", "{urn:old}all/alarm", "{urn:old}all/alarm/alarm1"]
    assert (below.problems, below.others) == ((), 0)

    deep = found(*(unit(",".join(f"ou=n{level}" for level in range(depth, 0, -1))) for depth in range(1, 70)))
    assert len(deep.topics) == 64, "the greatest depth of topics"
    assert [kind for kind, _ in problems(deep)] == ["illegal-name", *["orphan"] * 4]


def test_units_that_can_be_no_topic_are_reported() -> None:
    units = found(
        unit("ou=1st"),
        unit("ou=b,ou=1st"),
        unit("ou=c,ou=b,ou=1st"),
        unit("ou=good"),
        unit("ou=hall 1,ou=good"),
        unit("cn=1+ou=twice,ou=good"),
        unit("cn=2+ou=twice,ou=good"),
        # These are no units: they are counted, with the entries below them.
        unit("cn=admin", "person"),
        unit("ou=below,cn=admin"),
        unit("ou=deeper,ou=below,cn=admin"),
        unit("ou=alias", "alias", "extensibleObject"),
        unit("ou=elsewhere", "referral", "extensibleObject"),
        Entry.of(parse_dn("ou=other,dc=elsewhere"), {}),
    )
    assert ([*codes(units)], units.others) == (["good", "good/twice"], 5)
    assert problems(units) == [
        ("illegal-name", "ou=1st"),
        ("orphan", "ou=b,ou=1st"),
        ("illegal-name", "ou=hall 1,ou=good"),
        ("duplicate-topic", "cn=2+ou=twice,ou=good"),
        ("orphan", "ou=c,ou=b,ou=1st"),
    ]
    assert "'1st' is not a legal topic name" in str(units.problems[0])


def test_a_description_of_one_word_is_a_code_if_it_is_free() -> None:
    units = found(
        unit("ou=a", description="7"),
        unit("ou=b", description="Alarms of hall 7"),
        unit("ou=c", description=" 8 "),
        unit("ou=d", description="7"),
        unit("ou=e", description="x" * 300),
    )
    assert codes(units) == {"a": "7", "b": "", "c": "8", "d": ""}
    assert problems(units) == [("duplicate-code", "ou=d"), ("illegal-name", "ou=e")]


def test_attributes_without_a_counterpart_are_reported() -> None:
    alarm = unit("ou=alarm", description="2")
    alarm = Entry.of(alarm.dn, {**alarm.attributes, "policy": (b"<policy/>",), "entryuuid": (b"1",)})
    hall = unit("ou=hall", description="the first hall")
    assert found(alarm, hall, unit("")).left_out == {"policy": 1, "description": 1}
