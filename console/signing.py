"""Signing in and out, where the console is reached from the network: users and policy are the gateway's."""

from __future__ import annotations

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.console.console import Console, go, own_path, text_of
from arborcast.console.guard import Callers, principal_of
from arborcast.core.errors import ArborcastError, ConfigError
from arborcast.core.security.ip_addresses import is_loopback
from arborcast.engine.settings.loading import Settings
from arborcast.ingest.access.policy import current_policy
from arborcast.ingest.access.proxies import NONE, Proxies
from arborcast.ingest.access.rates import client_key
from arborcast.ingest.access.users import users_of
from arborcast.ingest.http.serving import proxies

# Methods with a password, for which a page has a form.
_WITH_PASSWORD = {"basic", "token"}


class SigningIn:
    def __init__(self, callers: Callers, proxies: Proxies = NONE) -> None:
        self.callers = callers
        self._proxies = proxies

    def routes(self, console: Console) -> list[Route]:
        async def page(request: Request) -> Response:
            onward = own_path(request.query_params.get("next", "/"))
            return console.page(request, "sign-in.html", onward=onward, refused="", name="")

        async def sign_in(request: Request, form: FormData) -> Response:
            name, onward = text_of(form, "name"), own_path(text_of(form, "next"))
            address = client_key(self._proxies.client(request.scope))
            try:
                identity = await self.callers.users.check(name, text_of(form, "password"), address)
                refused = "" if identity else "Wrong user name or password."
            except ArborcastError as error:
                identity, refused = None, str(error)
            if identity is None:
                return console.page(request, "sign-in.html", status=403, onward=onward, refused=refused, name=name)
            answer = go(onward)
            # A new session: a planted one becomes invalid.
            answer.headers["set-cookie"] = console.sessions.begin(identity.name)[1]
            return answer

        async def sign_out(request: Request, _form: FormData) -> Response:
            for forget in console.forgets:
                forget(principal_of(request.scope).session)
            answer = go("/sign-in")
            answer.headers["set-cookie"] = console.sessions.end()
            return answer

        return [
            console.get("/sign-in", page),
            console.post("/sign-in", sign_in, edits=False),
            console.post("/sign-out", sign_out, edits=False),
        ]


def signing_for(settings: Settings) -> SigningIn | None:
    """How people sign in; None on loopback, where they need not.

    Raises ConfigError where the console would be open to the network, and for files that cannot be read.
    """
    host, access = settings.console.host, settings.access
    if is_loopback(host):
        return None
    if not access.chosen():
        raise ConfigError(
            f"console.host = {host!r} is reachable from the network without authentication: set access.methods "
            '(for instance "basic", then `arborcast users add NAME`), or listen on 127.0.0.1'
        )
    if not _WITH_PASSWORD & set(access.chosen()):
        raise ConfigError(
            f"console.host = {host!r} is reachable from the network and needs a sign-in with a password: "
            'access.methods must contain "basic" or "token"'
        )
    users = users_of(access, settings.directory)
    return SigningIn(Callers(users, current_policy(access.policy_file)), proxies(settings.gateway))
