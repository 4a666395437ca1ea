"""The file of rules, and each mistake in it by a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.ingest.mqtt.rules import Rules, read_rules

BASE = "mqtt://broker.example:1883/"


def rules(folder: Path, text: str) -> Rules:
    file = folder / "rules.toml"
    file.write_text(text)
    return read_rules(file, BASE)


def test_rules_of_both_directions(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        '[in.sensors]\nmqtt = "plant/+/temp"\ntopic = "t/{1}"\n[in.others]\nmqtt = "x/#"\ntopic = "x/{#}"\n'
        '[out.alarms]\ntopic = "alarms//."\nmqtt = "a/{topic}"\nretain = true\n'
        '[out.all]\ntopic = "//."\nmqtt = "all/{topic}"\n',
    )
    assert [found.topic(each) for each in ("plant/k/temp", "x/y/z", "other")] == ["t/k", "x/y/z", None]
    alarms, everything = found.outgoing
    assert (alarms.name, alarms.address, alarms.retain) == ("alarms", f"{BASE}a/%7Btopic%7D?retain", True)
    assert [each.normal for each in alarms.topics] == ["alarms//."]
    assert (everything.topics, everything.retain) == ((), False)
    assert (alarms.policy.order, everything.policy.order) == ("strict", "acceptance")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[in.a]\n", r"missing required field `mqtt`"),
        ('[in.a]\nmqtt = "a"\ntopic = "a"\nqos = 2\n', "unknown field `qos`"),
        ('[inn.a]\nmqtt = "a"\ntopic = "a"\n', "unknown field `inn`"),
        ("[in.a\n", "Expected"),
        ('[in.a]\nmqtt = "a/#/b"\ntopic = "a"\n', r"\[in.a\]: .*# the last one"),
        ('[in."a b"]\nmqtt = "a"\ntopic = "a"\n', "the name of a rule"),
        ('[out.a]\ntopic = "a["\nmqtt = "a"\n', r"\[out.a\]: "),
        ('[out.a]\ntopic = "a"\nmqtt = "a"\norder = "none"\n', "Invalid enum value 'none'"),
        ('[out.a]\ntopic = "a"\nmqtt = "$SYS/a"\n', r"\[out.a\]: .*begins with \$"),
        (
            '[in.a]\nmqtt = "a/#"\ntopic = "a"\n[in.b]\nmqtt = "+/b"\ntopic = "b"\n',
            r"\[in.a\] and \[in.b\] select the same MQTT topics",
        ),
        (
            '[in.a]\nmqtt = "a/#"\ntopic = "a/{#}"\n[out.b]\ntopic = "a//."\nmqtt = "{topic}"\n',
            r"\[out.b\] sends back to 'a/sample/sample' the messages that \[in.a\] takes from there",
        ),
    ],
)
def test_mistakes(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        rules(tmp_path, text)
    assert "rules.toml" in str(raised.value)


def test_the_same_topics_in_and_out_by_other_ways_are_no_mistake_and_a_missing_file_is_named(tmp_path: Path) -> None:
    """What this engine has sent is recognised when it comes back."""
    with pytest.raises(ConfigError, match=r"mqtt.rules_file = '.*none.toml' cannot be read: "):
        read_rules(tmp_path / "none.toml", BASE)
    both = '[in.everything]\nmqtt = "#"\ntopic = "mqtt/{#}"\n[out.alarms]\ntopic = "alarms//."\nmqtt = "a/{topic}"\n'
    assert rules(tmp_path, both).topic("a/alarms/b") == "mqtt/a/alarms/b"
