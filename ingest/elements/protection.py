"""The protection of pushes that a subscriber requests: a signing secret, credentials. Read, checked, sealed.

    <p:Signing xmlns:p="urn:arborcast:policy"/>                      make a secret, and return it in the answer
    <p:Signing><p:Secret>whsec_…</p:Secret></p:Signing>              sign with this one
    <p:Credentials><p:Basic><p:User>…</p:User><p:Password>…</p:Password></p:Basic></p:Credentials>
    <p:Credentials><p:Bearer>…</p:Bearer></p:Credentials>
    <p:Credentials><p:ClientCertificate>NAME</p:ClientCertificate></p:Credentials>

Secrets are in clear text here, so no message of this module quotes its input.
"""

from __future__ import annotations

import base64
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from lxml import etree

from arborcast.core.errors import SecretError
from arborcast.core.security.keyring import KeyFile, Keys
from arborcast.core.security.signatures import find_certificate, key_of, new_secret
from arborcast.core.settings import SecretSettings
from arborcast.topic_model.namespaces import ARBORCAST_POLICY
from arborcast.topic_model.subscriptions import Protection, SigningSecret, Subscription
from arborcast.wire import limits
from arborcast.wire.errors import InvalidRequest, UnsupportedPolicy

logger = logging.getLogger(__name__)


def _name(local: str) -> str:
    return f"{{{ARBORCAST_POLICY}}}{local}"


SIGNING = _name("Signing")
CREDENTIALS = _name("Credentials")
SECRET = _name("Secret")

# RFC 7617 leaves the user's name without a colon; neither part may contain control characters.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# RFC 6750's b64token.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")

# Each push carries a signature by each; more than a few are the mark of a client that subscribes in a loop.
_MAX_SECRETS = 4


@dataclass(frozen=True)
class PushCredentials:
    """Credentials of pushes: the value of the Authorization header, the name of a client certificate."""

    authorization: bytes = field(default=b"", repr=False)
    certificate: str = ""


@dataclass(frozen=True)
class RequestedProtection:
    """The requested protection; the gateway makes a `secret` where that is empty."""

    signed: bool = False
    secret: bytes = field(default=b"", repr=False)
    credentials: PushCredentials | None = None


def read_protection(policy: etree._Element) -> RequestedProtection | None:
    """The protection that a wsnt:SubscriptionPolicy requests, None without one. Raises InvalidRequest."""
    signing, credentials = policy.find(SIGNING), policy.find(CREDENTIALS)
    if signing is None and credentials is None:
        return None
    return RequestedProtection(
        signing is not None,
        read_secret(signing) if signing is not None else b"",
        read_credentials(credentials) if credentials is not None else None,
    )


def read_secret(parent: etree._Element) -> bytes:
    """The key in the element's p:Secret, empty without one. Raises InvalidRequest."""
    element = parent.find(SECRET)
    if element is None:
        return b""
    try:
        return key_of(element.text or "")
    except SecretError as error:
        raise InvalidRequest(f"p:Secret: {error}") from None


def read_credentials(parent: etree._Element) -> PushCredentials:
    """The credentials in an element. Raises InvalidRequest."""
    basic, bearer = parent.find(_name("Basic")), parent.find(_name("Bearer"))
    certificate = (parent.findtext(_name("ClientCertificate")) or "").strip()
    if basic is not None and bearer is not None:
        raise InvalidRequest("credentials are p:Basic or p:Bearer, not both: there is one Authorization header")
    authorization = b""
    if basic is not None:
        user, password = (basic.findtext(_name(part)) or "" for part in ("User", "Password"))
        if not user or ":" in user or _CONTROL.search(user + password):
            raise InvalidRequest("p:Basic needs a p:User without a colon; neither part may contain control characters")
        authorization = b"Basic " + base64.b64encode(f"{user}:{password}".encode())
    elif bearer is not None:
        token = (bearer.text or "").strip()
        if not _TOKEN.fullmatch(token):
            raise InvalidRequest("p:Bearer is no token: letters, digits and . _ ~ + / - are, and = at the end")
        authorization = b"Bearer " + token.encode()
    if len(authorization) > limits.CREDENTIALS:
        raise InvalidRequest(f"credentials may have {limits.CREDENTIALS} bytes, these have {len(authorization)}")
    return PushCredentials(authorization, certificate)


class Protector:
    """Puts secrets into subscriptions, sealed."""

    def __init__(self, settings: SecretSettings, keys: Keys | None = None) -> None:
        self._settings = settings
        self._keys = keys or KeyFile(Path(settings.key_file))
        self.mac_keys: Keys = self._keys
        self.overlap_ms = settings.overlap_s * 1000
        """Default overlap of an old secret."""

    def grant(
        self, subscription: Subscription, requested: RequestedProtection, now_ms: int
    ) -> tuple[Subscription, str]:
        """The subscription as requested, and the secret that was made for it, empty if none was.

        Raises UnsupportedPolicy, or InvalidRequest.
        """
        made_secret = ""
        if requested.credentials is not None:
            subscription = self.with_credentials(subscription, requested.credentials)
        if requested.signed:
            subscription, made_secret, _ = self.with_secret(subscription, requested.secret, now_ms, self.overlap_ms)
        return subscription, made_secret

    def with_secret(
        self, subscription: Subscription, secret: bytes, now_ms: int, overlap_ms: int
    ) -> tuple[Subscription, str, int | None]:
        """Sign with this secret, or with a new one; older ones sign, too, during the overlap.

        Returns the subscription, the secret if it is new, and the end of the overlap, None without older ones. Raises
        UnsupportedPolicy.
        """
        _check_pushed(subscription, SIGNING)
        protection = subscription.protection or Protection()
        context = subscription.sealing_context()
        until = now_ms + overlap_ms
        try:
            newest = protection.secrets[:1]
            if secret and newest and self._keys.open(newest[0].sealed, context) == secret:
                return subscription, "", None  # a repeated request; its first answer may be lost
            old = [
                each if each.until_ms is not None and each.until_ms < until else SigningSecret(each.sealed, until)
                for each in protection.secrets
                if overlap_ms and (each.until_ms is None or each.until_ms > now_ms)
            ][: _MAX_SECRETS - 1]
            made_secret = "" if secret else new_secret()
            sealed = SigningSecret(self._keys.seal(secret or key_of(made_secret), context))
        except SecretError as error:
            raise _not_kept(error, SIGNING) from None
        changed = msgspec.structs.replace(protection, secrets=(sealed, *old))
        return msgspec.structs.replace(subscription, protection=changed), made_secret, until if old else None

    def with_credentials(self, subscription: Subscription, credentials: PushCredentials) -> Subscription:
        """Pushed to with these credentials instead of any others; empty ones take them away.

        Raises UnsupportedPolicy.
        """
        _check_pushed(subscription, CREDENTIALS)
        address = subscription.consumer.address
        if credentials.certificate:
            try:
                find_certificate(self._settings.client_certificates, credentials.certificate, address)
            except SecretError as error:
                raise UnsupportedPolicy(str(error), (CREDENTIALS,)) from None
        sealed = ""
        if credentials.authorization:
            if not (address.lower().startswith("https:") or self._settings.credentials_over_http):
                raise UnsupportedPolicy(
                    "credentials are not sent over plain http: use an https address", (CREDENTIALS,)
                )
            try:
                sealed = self._keys.seal(credentials.authorization, subscription.sealing_context())
            except SecretError as error:
                raise _not_kept(error, CREDENTIALS) from None
        protection = Protection(
            subscription.protection.secrets if subscription.protection is not None else (),
            sealed,
            credentials.certificate,
        )
        return msgspec.structs.replace(subscription, protection=protection if protection != Protection() else None)


def secret_element(secret: str) -> str:
    """The element with a new secret, which is shown in this answer only."""
    if not secret:
        return ""
    return f'<p:Signing xmlns:p="{ARBORCAST_POLICY}"><p:Secret>{secret}</p:Secret></p:Signing>'


def _check_pushed(subscription: Subscription, name: str) -> None:
    if subscription.pull_point:
        raise UnsupportedPolicy(
            "nothing is pushed to a pull point: there is nothing to sign or to authenticate", (name,)
        )


def _not_kept(error: SecretError, name: str) -> UnsupportedPolicy:
    # Where our files are is the operator's business.
    logger.error("a subscriber's secret cannot be stored: %s", error)
    return UnsupportedPolicy("this broker cannot store secrets now; the reason is in its log", (name,))
