"""Users in an LDAP server: found by a search, authenticated by a bind with their password, with their groups.

The server and the bind for searches are those of the section [directory]. Each request uses its own connection; `Users`
caches results, so there are few.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ldap3
from ldap3.utils.conv import escape_filter_chars

from arborcast.directory.errors import BindRefused, DirectoryError
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.ldap_connection import (
    RETRY_SECONDS,
    NoSuchEntry,
    can_bind_with,
    check,
    connect,
    disconnect,
    translated,
)
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.access.users_file import MAX_PASSWORD, may_be_name
from arborcast.topic_model.grants import Identity
from arborcast.wire.errors import IdentitiesUnavailable

logger = logging.getLogger(__name__)

# The attribute that a filter finds users by.
_NAMED = re.compile(r"\(([A-Za-z][A-Za-z0-9;.-]*)=\{user\}\)")


class LdapUsers:
    """See UserSource. Passwords in clear text are not to be had from a server, so there are no digests."""

    def __init__(self, access: AccessSettings, server: DirectorySettings) -> None:
        self._access = access
        self._server = server
        self._logged = ""

    def check(self, name: str, password: str) -> Identity | None:
        # LDAP takes an empty password for an anonymous bind, which succeeds (RFC 4513, 5.1.2).
        if not password or len(password) > MAX_PASSWORD or not can_bind_with(password) or not may_be_name(name):
            return None
        with self._reaching(), self._bound() as connection:
            dn, name = self._entry(connection, name)
            if not dn:
                return None
            own = dataclasses.replace(self._server, bind="simple", bind_dn=dn, password=password)
            try:
                disconnect(connect(own))
            except BindRefused:  # not another refusal, as of TLS by one of several servers
                return None
            return Identity(name, self._groups(connection, name, dn))

    def find(self, name: str) -> Identity | None:
        if not may_be_name(name):
            return None
        with self._reaching(), self._bound() as connection:
            dn, name = self._entry(connection, name)
            return Identity(name, self._groups(connection, name, dn)) if dn else None

    def clear_password(self, name: str) -> str:
        return ""

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except DirectoryError as error:
            if str(error) != self._logged:  # once, and not for each request
                self._logged = str(error)
                logger.warning("users cannot be looked up: %s", error)
            # Details of the server are for its operator, not for clients.
            raise IdentitiesUnavailable("users cannot be looked up now: try again later", RETRY_SECONDS) from error
        self._logged = ""

    @contextmanager
    def _bound(self) -> Iterator[Any]:
        connection = connect(self._server)
        try:
            with translated(self._server):
                yield connection
        finally:
            disconnect(connection)

    def _entry(self, connection: Any, name: str) -> tuple[str, str]:
        """The DN of the user's entry, empty for none, and the name in the entry.

        LDAP finds `anna` by `ANNA`, too; as separate users, spellings would multiply limits and split ownership.
        """
        attribute = _NAMED.search(self._access.ldap_user_filter)
        attributes = [attribute[1]] if attribute else [ldap3.NO_ATTRIBUTES]
        search_filter = self._access.ldap_user_filter.replace("{user}", escape_filter_chars(name))
        found = self._search(connection, self._access.ldap_user_base, search_filter, attributes)
        if len(found) != 1:
            # Two entries with one name are ambiguous.
            return "", ""
        dn = str(found[0]["dn"])
        values = found[0]["attributes"].get(attribute[1], ()) if attribute else " ".join(_folded(name))
        texts = [str(value) for value in ([values] if isinstance(values, str) else values)]
        same = [text for text in texts if _folded(text) == _folded(name) and may_be_name(text)]
        return (dn, same[0]) if same else ("", "")

    def _groups(self, connection: Any, name: str, dn: str) -> frozenset[str]:
        if not self._access.ldap_group_base:
            return frozenset()
        search_filter = self._access.ldap_group_filter.replace("{user}", escape_filter_chars(name))
        search_filter = search_filter.replace("{dn}", escape_filter_chars(dn))
        attribute = self._access.ldap_group_name
        found = self._search(connection, self._access.ldap_group_base, search_filter, [attribute])
        return frozenset(str(value) for entry in found for value in entry["attributes"].get(attribute, ()))

    def _search(self, connection: Any, base: str, search_filter: str, attributes: list[str]) -> list[Any]:
        connection.search(base, search_filter, ldap3.SUBTREE, attributes=attributes)
        try:
            check(self._server, connection.result, f"looking for users below {base}")
        except NoSuchEntry:
            return []
        return [entry for entry in connection.response or () if entry.get("type") == "searchResEntry"]


def _folded(text: str) -> list[str]:
    # As LDAP compares most names (RFC 4518): NFKC, without case, and however many spaces.
    return unicodedata.normalize("NFKC", text.casefold()).casefold().split()
