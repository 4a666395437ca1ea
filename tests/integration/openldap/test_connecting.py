"""TLS, binds and certificates with a real OpenLDAP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arborcast.directory.entries.changes import Put
from arborcast.directory.errors import DirectoryRefused, DirectoryUnavailable
from arborcast.directory.settings import DirectorySettings
from tests.support.directory import Open, Watch, fill, topic
from tests.support.slapd import ENGINE_DN, Slapd

pytestmark = pytest.mark.ldap


@pytest.mark.parametrize("how", ["ldaps", "starttls"])
def test_reading_and_watching_through_tls(slapd: Slapd, settings: DirectorySettings, opened: Open, how: str) -> None:
    secure: dict[str, Any] = {"url": slapd.tls_url} if how == "ldaps" else {"start_tls": True}
    directory = opened(replace(settings, ca_file=slapd.ca_file, **secure))
    fill(directory, "a")
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("a")
    fill(opened(settings), "b")
    watch.wait_paths("a", "b")


@pytest.mark.parametrize("how", ["ldaps", "starttls"])
def test_an_untrusted_certificate_and_a_missing_file_of_authorities(
    slapd: Slapd, settings: DirectorySettings, opened: Open, how: str
) -> None:
    secure: dict[str, Any] = {"url": slapd.tls_url} if how == "ldaps" else {"start_tls": True}
    for ca_file in ("", "/nowhere/ca.pem"):
        with pytest.raises(DirectoryRefused, match=r"directory\.ca_file"):
            opened(replace(settings, ca_file=ca_file, **secure)).load()


def test_a_certificate_for_another_host(slapd: Slapd, settings: DirectorySettings, opened: Open) -> None:
    # The certificate is for 127.0.0.1; 127.0.0.2 is the same host.
    url = slapd.tls_url.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises((DirectoryRefused, DirectoryUnavailable)):
        opened(replace(settings, url=url, ca_file=slapd.ca_file)).load()


def test_sasl_external_with_a_client_certificate(slapd: Slapd, settings: DirectorySettings, opened: Open) -> None:
    directory = opened(
        replace(
            settings,
            url=slapd.tls_url,
            ca_file=slapd.ca_file,
            bind="external",
            bind_dn="",
            password="",
            certificate_file=str(slapd.home / "client.pem"),
            key_file=str(slapd.home / "client.key"),
        )
    )
    # Only the engine may write, so a write proves the identity.
    assert set(fill(directory, "a").entries) == {"a"}


def test_sasl_external_over_the_unix_socket(slapd: Slapd, settings: DirectorySettings, opened: Open) -> None:
    directory = opened(replace(settings, url=slapd.ipc_url, bind="external", bind_dn="", password=""))
    assert set(fill(directory, "a").entries) == {"a"}


def test_anonymous_reads_and_writing_fails_with_a_reason(settings: DirectorySettings, opened: Open) -> None:
    fill(opened(settings), "a")
    anonymous = opened(replace(settings, bind="anonymous", bind_dn="", password=""))
    listing = anonymous.load()
    assert set(listing.entries) == {"a"}
    with pytest.raises(DirectoryRefused, match="anonymous"):
        anonymous.write([Put(topic("b"))], listing)


@pytest.mark.parametrize("password", ["wrong", ""])
def test_the_error_for_a_wrong_password_names_the_user(
    settings: DirectorySettings, opened: Open, password: str
) -> None:
    directory = opened(replace(settings, password=password))
    with pytest.raises(DirectoryRefused, match=ENGINE_DN) as caught:
        directory.load()
    assert "wrong" not in str(caught.value)
    watch = Watch()
    directory.watch(watch)
    assert isinstance(watch.wait_error(), DirectoryRefused)
