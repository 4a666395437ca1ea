"""Users of the gateway in a real LDAP server."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

import pytest

from arborcast.ingest.access.ldap_users import LdapUsers
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.access.users import FailedLogins, Users
from arborcast.topic_model.grants import Identity
from arborcast.wire.errors import IdentitiesUnavailable
from tests.support.slapd import SUFFIX, Slapd

PEOPLE, GROUPS = f"ou=people,{SUFFIX}", f"ou=groups,{SUFFIX}"
ACCESS = AccessSettings(
    methods="basic", users="ldap", ldap_user_base=PEOPLE, ldap_user_filter="(cn={user})", ldap_group_base=GROUPS
)
ANNA = Identity("anna", frozenset({"operators"}))


@pytest.fixture(scope="module")
def people(slapd: Slapd) -> Iterator[Slapd]:
    """anna, an operator; bert, with two entries; and a group of other people."""
    entries = [
        (PEOPLE, ["organizationalUnit"], {"ou": "people"}),
        (f"ou=more,{PEOPLE}", ["organizationalUnit"], {"ou": "more"}),
        (GROUPS, ["organizationalUnit"], {"ou": "groups"}),
        *(
            (f"cn={name},{base}", ["organizationalRole", "simpleSecurityObject"], {"cn": name, "userPassword": "pa"})
            for name, base in (("anna", PEOPLE), ("bert", PEOPLE), ("bert", f"ou=more,{PEOPLE}"))
        ),
        (f"cn=operators,{GROUPS}", ["groupOfNames"], {"cn": "operators", "member": f"cn=anna,{PEOPLE}"}),
        (f"cn=others,{GROUPS}", ["groupOfNames"], {"cn": "others", "member": f"cn=bert,{PEOPLE}"}),
    ]
    with slapd.admin() as admin:
        for dn, classes, facts in entries:
            admin.add(dn, classes, facts)
    yield slapd
    with slapd.admin() as admin:
        for dn, _, _ in reversed(entries):
            admin.delete(dn)


def test_a_user_is_authenticated_with_any_spelling_of_the_name(people: Slapd) -> None:
    for by in ("(cn={user})", "(|(cn={user})(description={user}))", "(&(objectClass=*)(cn={user}))"):
        users = LdapUsers(dataclasses.replace(ACCESS, ldap_user_filter=by), people.settings())
        for spelled in ("anna", "ANNA", "aNNa", "anna "):
            assert users.check(spelled, "pa") == ANNA
            assert users.find(spelled) == ANNA
        assert users.clear_password("anna") == ""


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("anna", "wrong"),
        ("anna", ""),  # an anonymous bind in LDAP, which succeeds
        ("nobody", "pa"),
        ("bert", "pa"),  # ambiguous
        ("*", "pa"),
        ("an*", "pa"),
        ("anna)(cn=*", "pa"),
        ("anna\x00", "pa"),
        ("", "pa"),
    ],
)
def test_other_names_and_passwords_are_refused(people: Slapd, name: str, password: str) -> None:
    assert LdapUsers(ACCESS, people.settings()).check(name, password) is None


def test_over_tls(people: Slapd, caplog: pytest.LogCaptureFixture) -> None:
    if not people.tls:
        pytest.skip("openssl is not installed")
    settings = people.settings(start_tls=True, ca_file=people.ca_file)
    assert LdapUsers(ACCESS, settings).check("anna", "pa") == ANNA
    with pytest.raises(IdentitiesUnavailable), caplog.at_level("WARNING"):
        LdapUsers(ACCESS, people.settings(start_tls=True)).check("anna", "pa")
    assert "certificate" in caplog.text


def test_an_unreachable_server_is_no_wrong_password(people: Slapd) -> None:
    away = LdapUsers(ACCESS, people.settings(url="ldap://127.0.0.1:1"))
    users = Users(away, remember_s=60, failed_logins=FailedLogins(1, 300))
    for _ in range(3):
        with pytest.raises(IdentitiesUnavailable):
            asyncio.run(users.check("anna", "pa", "192.0.2.1"))
