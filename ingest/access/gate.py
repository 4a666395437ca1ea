"""What the application asks for each request: may it come in, who is it, and what may that one do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from lxml import etree

from ingest.access.authenticator import Authenticator
from ingest.access.grants import Caller, ClientRequest, Identity
from ingest.access.policy import DEFAULT, AccessPolicy
from ingest.access.proxies import NONE, Proxies
from ingest.access.rates import Rates, client_key, is_loopback

# What identities may do is worked out once for each, for so many.
_CALLERS = 10_000


class Gate:
    """Stands before the operations. There is none where nothing is limited and nobody has to say who it is."""

    def __init__(
        self,
        rates: Rates | None = None,
        authenticator: Authenticator | None = None,
        policy: Callable[[], AccessPolicy] = lambda: DEFAULT,
        proxies: Proxies = NONE,
    ) -> None:
        self._rates = rates
        self._authenticator = authenticator
        self._policy = policy
        self._proxies = proxies
        self._judged_by: AccessPolicy | None = None
        self._callers: OrderedDict[Identity, Caller] = OrderedDict()

    async def enter(self, scope: Mapping[str, Any]) -> ClientRequest:
        """A request begins: only its head is there. Raises AccessRefused."""
        client_request = ClientRequest(client_key(self._proxies.client(scope)))
        authenticator = self._authenticator
        if authenticator is not None:
            client_request.identity = await authenticator.of_head(scope, client_request.address)
            if client_request.identity is None and not authenticator.reads_messages:
                raise authenticator.missing()
        if self._rates is not None:
            self._rates.request(client_request.client)
        return client_request

    async def look(self, scope: Mapping[str, Any]) -> None:
        """Somebody wants to see how we are doing, from the network. Raises AccessRefused."""
        host = self._proxies.client(scope)
        authenticator = self._authenticator
        if authenticator is None or is_loopback(host) or _is_this_machine(host, scope):
            return
        if not await authenticator.of_head(scope, client_key(host)):
            raise authenticator.missing()

    def received(self, client_request: ClientRequest, size: int) -> None:
        """The body is there, in so many bytes."""
        if self._rates is not None:
            self._rates.received(client_request.client, size)

    def publishes(self, client: str, deliveries: Callable[[], int]) -> None:
        """A client's notifications are about to be stored; `deliveries` counts how often they will be pushed."""
        if self._rates is not None and self._rates.count_deliveries:
            self._rates.deliveries(client, deliveries)

    async def identify(self, client_request: ClientRequest, root: etree._Element) -> Caller | None:
        """Who asks, now that the message is there; None where nobody has to say. Raises AccessRefused."""
        authenticator = self._authenticator
        if authenticator is None:
            return None
        if client_request.identity is None:
            client_request.identity = await authenticator.of_message(root, client_request.address)
            if self._rates is not None:
                # So far it has counted for its address. As a user it may be over its rate already.
                self._rates.request(client_request.client)
        return self._caller(client_request.identity)

    def _caller(self, identity: Identity) -> Caller:
        policy = self._policy()
        if policy is not self._judged_by:
            self._judged_by = policy
            self._callers.clear()
        caller = self._callers.get(identity)
        if caller is None:
            caller = self._callers[identity] = policy.caller(identity)
            if len(self._callers) > _CALLERS:
                self._callers.popitem(last=False)
        return caller


def _is_this_machine(host: str, scope: Mapping[str, Any]) -> bool:
    """Whether the client has the very address that it has connected to, as our supervisor has where we do not listen
    on loopback. Nobody else can: answers to it never leave this machine.
    """
    server = scope.get("server")
    return bool(host and server and host == server[0])
