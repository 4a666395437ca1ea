"""TLS at the gateway's door: what it listens with, and certificates that are replaced while it runs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import ConfigError
from core.files import Stamp, stamp_of
from ingest.access.settings import TlsSettings

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 10.0


@dataclass
class Handshakes:
    """How many there were. What was begun and neither succeeded nor was refused has failed, or is under way."""

    begun: int = 0
    succeeded: int = 0
    refused: int = 0


class ServerTls:
    """The context that a server listens with. The constructor raises ConfigError for files that cannot be used."""

    def __init__(self, settings: TlsSettings) -> None:
        self.settings = settings
        self.handshakes = Handshakes()
        self.context = _context(settings)
        self._stamps = self._look()

    async def follow_files(self, every_s: float = _LOOK_AGAIN_S) -> None:
        """Take over certificates as they are renewed, until cancelled. Connections that are there keep theirs."""
        while True:
            await asyncio.sleep(every_s)
            self.refresh()

    def refresh(self) -> bool:
        """Take over the certificate and its key if they have changed; whether it was done.

        Authorities of clients are only read at the start: OpenSSL can take up new ones, but not forget old ones.
        """
        stamps = self._look()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            # Tried on another one first: a key that does not go with its certificate would spoil the one in use.
            _context(self.settings)
            _load(self.context, self.settings)
        except ConfigError as error:
            logger.error("%s; the certificate that was there stays in use", error)
            return False
        logger.info("the certificate %s was read again", self.settings.certificate_file)
        return True

    def _look(self) -> tuple[object, ...]:
        found: list[Stamp | None] = []
        for name in (self.settings.certificate_file, self.settings.key_file):
            try:
                found.append(stamp_of(Path(name).stat()))
            except OSError:
                found.append(None)
        return tuple(found)


def _context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if settings.minimum == "1.3" else ssl.TLSVersion.TLSv1_2
    # A client must not make us compute key exchanges again and again on one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    _load(context, settings)
    if settings.client_ca_file:
        try:
            context.load_verify_locations(settings.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"tls.client_ca_file = {settings.client_ca_file} cannot be used: {error}") from error
        # Optional: who has none may have other credentials, and is told at HTTP what is missing. A certificate that is
        # shown and not good ends the connection in any case.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _load(context: ssl.SSLContext, settings: TlsSettings) -> None:
    try:
        # Without a password: a terminal would be asked for one, and there is none.
        context.load_cert_chain(settings.certificate_file, settings.key_file or None, lambda: settings.key_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls.certificate_file = {settings.certificate_file} and tls.key_file = {settings.key_file} cannot be "
            f"used: {error}"
        ) from error


def certificate_names(certificate: Mapping[str, Any], kind: str) -> list[str]:
    """The names of a kind in a certificate, as the ssl module shows it: common_name, dns, email, uri or subject."""
    if kind == "common_name":
        return [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    if kind == "subject":
        subject = [pair for part in certificate.get("subject", ()) for pair in part]
        # As RFC 4514 writes it: the most particular first.
        short = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C",
                 "domainComponent": "DC", "localityName": "L", "stateOrProvinceName": "ST"}  # fmt: skip
        return [",".join(f"{short.get(key, key)}={_escaped(value)}" for key, value in reversed(subject))]
    wanted = {"dns": "DNS", "email": "email", "uri": "URI"}[kind]
    return [value for key, value in certificate.get("subjectAltName", ()) if key == wanted]


def _escaped(value: str) -> str:
    return "".join(f"\\{char}" if char in ',+"\\<>;=' else char for char in value)
