"""Settings of access: who may come in, and how much one client may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arborcast.core.errors import ConfigError
from arborcast.core.settings import setting

METHODS = ("basic", "bearer", "token", "certificate")
"""Ways to say who one is: HTTP Basic, signed tokens (JWT), WS-Security's UsernameToken, a TLS certificate."""

JWT_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Of those that there are, the ones whose key everybody may know."""


@dataclass(frozen=True)
class TlsSettings:
    """TLS of the gateway."""

    certificate_file: str = setting(
        "",
        "PEM file with the gateway's certificate and those between it and its authority; empty means plain HTTP. A "
        "renewed one is taken over within ten seconds.",
    )
    key_file: str = setting("", "PEM file with its key; empty means that it is in the same file.")
    key_password: str = setting("", "Password of the key, if it has one.", secret=True)
    client_ca_file: str = setting("", "PEM file with the authorities whose clients are known by their certificate.")
    handshake_timeout_s: float = setting(
        10.0, "A client that has not finished the handshake by then is cut off.", minimum=0.1, maximum=60, unit="s"
    )
    handshakes: int = setting(
        1_000,
        "TLS handshakes under way at a time (per worker); for each one more, the oldest is cut off.",
        minimum=16,
        maximum=100_000,
    )
    handshakes_per_client: int = setting(
        250,
        "Of these, by one address (of IPv6, the network of 64 bits); connections beyond are closed at once. Give it "
        "more where many clients come from behind one address.",
        minimum=1,
        maximum=100_000,
    )
    minimum: Literal["1.2", "1.3"] = setting("1.2", "The oldest version of TLS that is spoken.")

    def __post_init__(self) -> None:
        if not self.certificate_file and (self.key_file or self.client_ca_file):
            raise ConfigError("tls.certificate_file must be set when tls.key_file or tls.client_ca_file is")


@dataclass(frozen=True)
class AccessSettings:
    """Who may come in. Without `methods`, everybody may do everything; then only loopback is listened on."""

    methods: str = setting(
        "",
        "How clients may say who they are: any of basic (HTTP Basic), bearer (JWT), token (WS-Security "
        "UsernameToken), certificate (of the TLS connection), separated by commas. Empty: nobody has to, and everybody "
        "may do everything.",
    )
    open_network: bool = setting(
        False, "Listen on an address other than loopback although nobody has to say who it is."
    )
    users: Literal["file", "ldap"] = setting(
        "file", "Where users are: in access.users_file, or in the LDAP server that the section [directory] names."
    )
    ldap_user_base: str = setting("", "With users = ldap: the entry below which users are.")
    ldap_user_filter: str = setting("(uid={user})", "With users = ldap: what finds a user by name; it must find one.")
    ldap_group_base: str = setting("", "With users = ldap: the entry below which groups are; empty for no groups.")
    ldap_group_filter: str = setting(
        "(|(member={dn})(uniqueMember={dn})(memberUid={user}))",
        "With users = ldap: what finds the groups of a user, by its DN or its name.",
    )
    ldap_group_name: str = setting("cn", "With users = ldap: the attribute that is a group's name.")
    users_file: str = setting(
        "", "Users, their passwords and groups (`arborcast users`); empty means users.toml in the data directory."
    )
    policy_file: str = setting(
        "",
        "The file that says who may publish to, subscribe to and manage which topics. Without one, everybody who has "
        "proved who it is publishes and subscribes everywhere, and manages only what is its own.",
    )
    cache_s: float = setting(
        60.0,
        "A password that was right is not checked again for so long; neither is a change of groups seen.",
        minimum=0,
        maximum=3_600,
        unit="s",
    )
    failures_per_minute: int = setting(
        30,
        "So many wrong credentials for one name from one address in a minute; then that name gets 429 from there. "
        "Right ones that were there before, and good tokens, always get in.",
        minimum=1,
        maximum=100_000,
    )
    address_failures_per_minute: int = setting(
        300,
        "And so many from one address in a minute, whatever the names; at least failures_per_minute. Behind a proxy "
        "set gateway.trusted_proxies, or all clients have one address.",
        minimum=1,
        maximum=1_000_000,
    )
    certificate_name: Literal["common_name", "dns", "email", "uri", "subject"] = setting(
        "common_name", "What in a client's certificate is the name of the user."
    )
    certificate_users: Literal["known", "any"] = setting(
        "known",
        "Whether the name in a certificate must be one of our users (which gives it groups), or is taken for itself.",
    )
    token_window_s: float = setting(
        300.0, "How far wsu:Created of a UsernameToken may lie from our clock.", minimum=1, maximum=3_600, unit="s"
    )
    token_nonces: int = setting(
        100_000,
        "So many nonces are remembered, for all workers together; beyond this digests are refused.",
        minimum=100,
    )

    jwks_file: str = setting("", "With bearer: the public keys of who signs tokens, a JSON Web Key Set.")
    jwt_algorithms: str = setting(
        "RS256, ES256", "With bearer: the algorithms that are taken, separated by commas; only public-key ones may be."
    )
    jwt_issuer: str = setting("", "With bearer: what the claim iss must be.")
    jwt_audience: str = setting("", "With bearer: what the claim aud must name; several, separated by commas.")
    jwt_user_claim: str = setting("sub", "With bearer: the claim that is the user's name.")
    jwt_groups_claim: str = setting("groups", "With bearer: the claim with the user's groups.")
    jwt_leeway_s: int = setting(
        30, "With bearer: how far our clock and the issuer's may be apart.", minimum=0, maximum=600, unit="s"
    )

    def __post_init__(self) -> None:
        for method in self.chosen():
            if method not in METHODS:
                raise ConfigError(f"access.methods holds {method!r}; it may hold {', '.join(METHODS)}")
        if self.users == "ldap" and not self.ldap_user_base:
            raise ConfigError("access.ldap_user_base must be set when access.users is ldap")
        if "bearer" in self.chosen():
            self._check_bearer()

    def _check_bearer(self) -> None:
        for name in ("jwks_file", "jwt_issuer", "jwt_audience"):
            if not getattr(self, name):
                raise ConfigError(f"access.{name} must be set when access.methods holds bearer")
        chosen = self.jwt_chosen()
        if not chosen or not set(chosen) <= set(JWT_ALGORITHMS):
            raise ConfigError(
                f"access.jwt_algorithms = {self.jwt_algorithms!r} is not allowed; it may hold "
                f"{', '.join(JWT_ALGORITHMS)}: with any other, whoever can check a token could make one"
            )

    def jwt_chosen(self) -> tuple[str, ...]:
        """The algorithms of tokens that are taken."""
        return tuple(each.strip() for each in self.jwt_algorithms.split(",") if each.strip())

    def chosen(self) -> tuple[str, ...]:
        """The methods that are on."""
        return tuple(method.strip() for method in self.methods.split(",") if method.strip())


@dataclass(frozen=True)
class LimitSettings:
    """What one client may have of the gateway, so that it cannot starve the others.

    A client is a user where there is authentication, else an address (of IPv6, the network of 64 bits: one machine has
    all of it). Rates hold for each worker. 0 means no limit.
    """

    requests_per_s: float = setting(0.0, "Requests per second of one client; more get 429.", minimum=0, unit="1/s")
    request_burst: int = setting(
        100, "So many requests at once, before requests_per_s counts.", minimum=1, maximum=1_000_000
    )
    bytes_per_s: int = setting(
        0, "Bytes of request bodies per second of one client; more get 429.", minimum=0, unit="bytes/s"
    )
    byte_burst: int = setting(
        16 * 1024 * 1024, "So many bytes at once, before bytes_per_s counts.", minimum=1024, unit="bytes"
    )
    deliveries_per_minute: int = setting(
        0,
        "Deliveries that one client's notifications may cause in a minute: each counts as often as there are "
        "subscriptions that it goes to when it comes. More get 429; a single request may go beyond, and is paid for "
        "afterwards. What triggers publish counts once each for their owner, in each worker of the job.",
        minimum=0,
        unit="1/min",
    )
    clients: int = setting(
        10_000,
        "So many clients are remembered; beyond this those not seen for longest are forgotten.",
        minimum=16,
        maximum=1_000_000,
    )
    connections_per_client: int = setting(
        0, "Connections of one address at a time; more get 503 (per worker).", minimum=0
    )
    send_timeout_s: float = setting(
        30.0,
        "A client that does not read its answer for so long is cut off, so that it holds no memory.",
        minimum=0.1,
        unit="s",
    )
