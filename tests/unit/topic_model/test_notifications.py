from __future__ import annotations

import msgspec
import pytest

from topic_model.errors import InfrastructureError, RecordVersionError
from topic_model.notifications import VERSION, Notification, decode, encode
from topic_model.topics import TopicPath

NOTIFICATION = Notification("id", TopicPath("{urn:t}a"), b"<n/>", 1, b"<p/>", "urn:uuid:1", "pub")


@pytest.mark.parametrize("notification", [NOTIFICATION, msgspec.structs.replace(NOTIFICATION, only="sub")])
def test_what_is_written_is_read(notification: Notification) -> None:
    key, value = encode(notification)
    assert key == b"{urn:t}a"
    assert decode(value) == notification


def test_only_what_older_readers_would_send_to_everybody_is_hidden_from_them() -> None:
    versions = [
        msgspec.msgpack.decode(encode(each)[1])["v"]
        for each in (NOTIFICATION, msgspec.structs.replace(NOTIFICATION, only="sub"))
    ]
    assert versions == [1, 2]


def test_records_of_a_newer_version_and_of_others_are_refused() -> None:
    newer = msgspec.msgpack.encode({"v": VERSION + 1, "notification": msgspec.to_builtins(NOTIFICATION)})
    with pytest.raises(RecordVersionError):
        decode(newer)
    with pytest.raises(InfrastructureError):
        decode(b"something else")
