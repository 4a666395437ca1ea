"""What proves who somebody is, is in no log, no error and no answer."""

from __future__ import annotations

import base64
import logging
from pathlib import Path

import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.settings import AccessSettings, TlsSettings
from arborcast.ingest.access.username_token import UsernameToken
from arborcast.ingest.access.users import FileUsers, Guesses, Users
from arborcast.ingest.access.users_file import User, hash_password, write_users
from tests.support.gateway_parts import GatewayParts
from tests.support.soap_messages import envelope, notify, subscribe

SECRET = "correct-horse-battery"  # noqa: S105  # looked for everywhere
WSSE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd"
TOKEN = (
    f'<w:Security xmlns:w="{WSSE}"><w:UsernameToken><w:Username>anna</w:Username>'
    "<w:Password{kind}>{password}</w:Password></w:UsernameToken></w:Security>"
)


def test_no_answer_and_no_log_shows_a_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_users({"anna": User("anna", hash_password(SECRET, log_n=4), clear=SECRET)}, tmp_path / "users.toml")
    users = Users(FileUsers(tmp_path / "users.toml"), remember_s=60, guesses=Guesses(100, 1_000))
    parts = GatewayParts()
    parts.gateway.gate = Gate(None, Authenticator(AccessSettings(methods="basic, token"), users))
    encoded = base64.b64encode(f"anna:{SECRET}".encode()).decode()
    wrong = base64.b64encode(f"bert:{SECRET}".encode()).decode()
    with caplog.at_level(logging.DEBUG):
        answers = [
            parts.post(envelope(notify()), authorization=f"Basic {encoded}"),
            parts.post(envelope(notify()), authorization=f"Basic {wrong}"),
            parts.post(envelope(subscribe("nowhere")), authorization=f"Basic {encoded}"),
            parts.post(envelope(notify(), header=TOKEN.format(kind="", password=SECRET))),
            parts.post(envelope(notify(), header=TOKEN.format(kind="", password=SECRET + "!"))),
            parts.post(envelope(notify(), header=TOKEN.format(kind=' Type="x"', password=SECRET))),
            parts.post(envelope("<no/>", header=TOKEN.format(kind="", password=SECRET))),
        ]
    assert [answer.status for answer in answers][:2] == [202, 401]
    for text in (caplog.text, *(answer.body.decode() for answer in answers), parts.metrics.text()):
        for secret in (SECRET, encoded, wrong):
            assert secret not in text


@pytest.mark.parametrize(
    "value",
    [
        User("anna", SECRET, clear=SECRET),
        UsernameToken("anna", SECRET, SECRET.encode()),
        TlsSettings("cert", key_password=SECRET),
        KafkaSettings(sasl_password=SECRET, ssl_key_password=SECRET),
    ],
)
def test_values_that_hold_secrets_do_not_show_them(value: object) -> None:
    assert SECRET not in repr(value)
    assert SECRET not in f"{value}"
