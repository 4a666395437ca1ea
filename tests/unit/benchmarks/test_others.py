"""Other systems in measurements: their jars are pinned, their routes are the documented ones."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from lxml import etree

from benchmarks.peers import others

JARS = Path(others.__file__).with_name("jars.xml")


@pytest.mark.parametrize("which", others.SETS)
def test_each_required_jar_is_pinned(which: str) -> None:
    pinned = others._pinned(which)
    asked = [each for each in etree.parse(JARS).iter("dependency") if (each.get("conf") or "").startswith(which)]
    assert asked
    assert {f"{each.get('name')}-{each.get('rev')}.jar" for each in asked} <= set(pinned)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in pinned.values())


def test_a_jar_other_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jar").write_bytes(b"not it")
    with pytest.raises(RuntimeError, match=r"a\.jar"):
        others._verify(tmp_path, {"a.jar": "0" * 64})
    (tmp_path / "a.jar").unlink()
    with pytest.raises(RuntimeError, match=r"b\.jar"):
        others._verify(tmp_path, {"b.jar": "0" * 64})


def test_each_subscriber_has_a_separate_route_and_group() -> None:
    urls = ["http://127.0.0.1:1/a", "http://127.0.0.1:1/b"]
    routes = etree.fromstring(others._routes("h:9092", "x.notifications", urls, 2).encode())
    sources = [parse_qs(urlsplit(each.get("uri") or "").query) for each in routes.iter("{*}from")]
    assert [each["groupId"] for each in sources] == [["x.notifications-0"], ["x.notifications-1"]]
    assert all(each["breakOnFirstError"] == ["true"] for each in sources), "at least once, in order"
    targets = [each.get("uri") or "" for each in routes.iter("{*}to")]
    assert [target.partition("?")[0] for target in targets] == urls
