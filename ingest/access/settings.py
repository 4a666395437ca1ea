"""Settings of authentication, authorisation, TLS and limits per client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arborcast.core.errors import ConfigError
from arborcast.core.settings import setting

METHODS = ("basic", "bearer", "token", "certificate")
"""Authentication methods: HTTP Basic, signed tokens (JWT), WS-Security's UsernameToken, a TLS certificate."""

JWT_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms with a public verification key."""


@dataclass(frozen=True)
class TlsSettings:
    """TLS of the gateway."""

    certificate_file: str = setting(
        "", "Certificate and chain (PEM); empty: plain HTTP. A renewed one applies within ten seconds."
    )
    key_file: str = setting("", "Its key (PEM); empty: the same file.")
    key_password: str = setting("", "Password of the key.", secret=True)
    client_ca_file: str = setting("", "Authorities of client certificates (PEM).")
    handshake_timeout_s: float = setting(10.0, "TLS handshakes.", minimum=0.1, maximum=60, unit="s")
    handshakes: int = setting(
        1_000, "Parallel ones (per worker); beyond it the oldest is closed.", minimum=16, maximum=100_000
    )
    handshakes_per_client: int = setting(
        250, "Parallel ones of one address (IPv6: its /64); further ones are closed.", minimum=1, maximum=100_000
    )
    minimum: Literal["1.2", "1.3"] = setting("1.2", "Minimum TLS version.")

    def __post_init__(self) -> None:
        if not self.certificate_file and (self.key_file or self.client_ca_file):
            raise ConfigError("tls.certificate_file must be set when tls.key_file or tls.client_ca_file is")


@dataclass(frozen=True)
class AccessSettings:
    """Authentication and authorisation. Without `methods` every client may do everything, on loopback only."""

    methods: str = setting(
        "",
        "Any of basic (HTTP Basic), bearer (JWT), token (WS-Security UsernameToken), certificate (TLS), "
        "separated by commas.",
    )
    open_network: bool = setting(False, "Listen beyond loopback without authentication.")
    users: Literal["file", "ldap"] = setting("file", "Source of users: access.users_file, or LDAP ([directory]).")
    ldap_user_base: str = setting("", "Base entry of users.")
    ldap_user_filter: str = setting("(uid={user})", "It must match one entry.")
    ldap_group_base: str = setting("", "Base entry of groups; empty: no groups.")
    ldap_group_filter: str = setting(
        "(|(member={dn})(uniqueMember={dn})(memberUid={user}))", "Filter for a user's groups, by DN or name."
    )
    ldap_group_name: str = setting("cn", "Attribute with a group's name.")
    users_file: str = setting("", "Users (`arborcast users`); empty: users.toml in the data directory.")
    policy_file: str = setting(
        "", "Rights by topic. Empty: every user publishes and subscribes everywhere and manages its own resources."
    )
    cache_s: float = setting(60.0, "Cache of verified passwords and groups.", minimum=0, maximum=3_600, unit="s")
    failures_per_minute: int = setting(
        30,
        "Failed logins for one name from one address, then 429, except for recent users and valid tokens.",
        minimum=1,
        maximum=100_000,
    )
    address_failures_per_minute: int = setting(
        300, "Of one address, for all names; at least failures_per_minute.", minimum=1, maximum=1_000_000
    )
    certificate_name: Literal["common_name", "dns", "email", "uri", "subject"] = setting(
        "common_name", "Part with the user's name."
    )
    certificate_users: Literal["known", "any"] = setting(
        "known", "known: only users, with their groups; any: every name."
    )
    token_window_s: float = setting(
        300.0, "Maximum difference between wsu:Created and the gateway's clock.", minimum=1, maximum=3_600, unit="s"
    )
    token_nonces: int = setting(100_000, "Stored nonces; beyond it digests are refused.", minimum=100)

    jwks_file: str = setting("", "The issuer's JSON Web Key Set.")
    jwt_algorithms: str = setting("RS256, ES256", "Accepted public-key algorithms.")
    jwt_issuer: str = setting("", "Required claim iss.")
    jwt_audience: str = setting("", "Accepted claims aud, separated by commas.")
    jwt_user_claim: str = setting("sub", "Claim with the user's name.")
    jwt_groups_claim: str = setting("groups", "Claim with the user's groups.")
    jwt_leeway_s: int = setting(30, "Maximum difference of clocks.", minimum=0, maximum=600, unit="s")

    def __post_init__(self) -> None:
        for method in self.chosen():
            if method not in METHODS:
                raise ConfigError(f"access.methods contains {method!r}; allowed are {', '.join(METHODS)}")
        if self.users == "ldap" and not self.ldap_user_base:
            raise ConfigError("access.ldap_user_base must be set when access.users is ldap")
        if "bearer" in self.chosen():
            self._check_bearer()

    def _check_bearer(self) -> None:
        for name in ("jwks_file", "jwt_issuer", "jwt_audience"):
            if not getattr(self, name).strip(", "):
                raise ConfigError(f"access.{name} must be set when access.methods contains bearer")
        chosen = self.jwt_chosen()
        if not chosen or not set(chosen) <= set(JWT_ALGORITHMS):
            raise ConfigError(
                f"access.jwt_algorithms = {self.jwt_algorithms!r} must be one or more of {', '.join(JWT_ALGORITHMS)}: "
                "with any other, a verifier could also sign tokens"
            )

    def jwt_chosen(self) -> tuple[str, ...]:
        """The accepted algorithms of tokens."""
        return tuple(each.strip() for each in self.jwt_algorithms.split(",") if each.strip())

    def chosen(self) -> tuple[str, ...]:
        """The enabled methods."""
        return tuple(method.strip() for method in self.methods.split(",") if method.strip())


@dataclass(frozen=True)
class LimitSettings:
    """Limits of one client.

    A client is a user, or without authentication an address (IPv6: its /64). Rates apply per worker. 0: no limit.
    """

    requests_per_s: float = setting(0.0, "Beyond it 429.", minimum=0, unit="1/s")
    request_burst: int = setting(100, "Requests at once before requests_per_s applies.", minimum=1, maximum=1_000_000)
    bytes_per_s: int = setting(0, "Of request bodies, then 429.", minimum=0, unit="bytes/s")
    byte_burst: int = setting(16 * 1024 * 1024, "Bytes at once before bytes_per_s applies.", minimum=1024, unit="bytes")
    deliveries_per_minute: int = setting(0, "Caused by notifications and triggers, then 429.", minimum=0, unit="1/min")
    clients: int = setting(
        10_000, "Clients with stored rates; the least recent are forgotten.", minimum=16, maximum=1_000_000
    )
    connections_per_client: int = setting(
        0, "Parallel connections of one address (per worker); others get 503.", minimum=0
    )
    send_timeout_s: float = setting(30.0, "Clients that do not read are disconnected.", minimum=0.1, unit="s")
