"""Pages of the screen *Topics* that change nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin.messages import LastMessages, last_messages
from arborcast.admin.subscriptions import recipients
from arborcast.console.console import Console
from arborcast.console.guard import Principal, principal_of
from arborcast.console.screens.topics import browsing, fields
from arborcast.console.screens.topics.draft import LARGE, Draft, Edit, ImportEdit, PutEdit, Subtree, as_if
from arborcast.console.screens.topics.stored_drafts import Drafts
from arborcast.core.errors import ExpressionError
from arborcast.engine.embedded.state import reachable_kafka
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath, parent_of
from arborcast.topic_model.tree.distribution import EVERYWHERE

# Subscribers that are shown beside a topic; the screen Subscriptions has them all.
_SUBSCRIBERS = 20

# Nodes whose topics below are remembered.
_COUNTED = 1_000

# Parallel reads of last messages; others wait.
_READING = 2

_ACTIONS = ("add", "rename", "move", "remove")


class TreePages:
    """The trees with a visitor's collected changes."""

    def __init__(self, console: Console, drafts: Drafts) -> None:
        self._console = console
        self._drafts = drafts
        self._counted: dict[TopicPath, Subtree] = {}
        self._counted_at = -1
        self._reading = asyncio.Semaphore(_READING)

    def routes(self) -> list[Route]:
        get = self._console.get
        return [
            get("/topics", self.page),
            get("/topics/children", self.children),
            get("/topics/search", self.search),
        ]

    def draft(self, principal: Principal) -> Draft:
        return self._drafts.of(_person(principal))

    async def keep_draft(self, principal: Principal) -> None:
        """The collected changes have changed."""
        person = _person(principal)
        await asyncio.to_thread(self._drafts.write, person, self._drafts.of(person))

    async def page(self, request: Request) -> Response:
        query = request.query_params
        at, do = query.get("at", ""), query.get("do", "")
        return self.show(request, at, do, last=await self._last(TopicPath(at)) if at and do == "messages" else None)

    async def children(self, request: Request) -> Response:
        above, after = request.query_params.get("above", ""), request.query_params.get("after", "")
        draft = self.draft(principal_of(request.scope))
        tree = self._console.control.table.topics
        with as_if(tree, draft.edits, large=False):
            level = browsing.level(tree, above, after=after)
        return self._console.fragment(
            request, "topics/level.html", level=level, gathered=_paths(draft.edits), at="", searched=False
        )

    async def search(self, request: Request) -> Response:
        values = self._left(request, "", request.query_params.get("q", ""))
        return self._console.fragment(request, "topics/left.html", **values)

    def show(
        self,
        request: Request,
        at: str,
        do: str = "",
        *,
        status: int = 200,
        values: dict[str, str] | None = None,
        errors: dict[str, str] | None = None,
        last: LastMessages | None = None,
    ) -> Response:
        """The page with a selected node, and its `last` messages on request. After a refused form: its `values`, and
        the mistakes by field."""
        principal = principal_of(request.scope)
        do = do if do in _ACTIONS and principal.may_edit else ""
        right = {"errors": errors or {}, "do": do, "at": at, "last": last, **self._detail(principal, at)}
        shown = right["record"] if do != "add" else None
        usual = {
            "name": right["node"]["name"] if do == "rename" and right["node"] else "",
            "namespace": "",
            "target": at,
        }
        right["form"] = {**usual, **fields.values_of(shown or TopicRecord(TopicPath(at))), **(values or {})}
        if request.headers.get("x-fragment"):
            return self._console.fragment(request, "topics/detail.html", **right)
        left = self._left(request, at, request.query_params.get("q", ""))
        draft = self.draft(principal)
        return self._console.page(
            request,
            "topics/page.html",
            status=status,
            **{**left, **right},
            edits=len(draft.edits),
            draft=draft,
            seen=self._console.state.topic_changes,
        )

    async def _last(self, path: TopicPath) -> LastMessages:
        """Read from the logs on request, since it takes a moment."""
        settings = self._console.settings
        policy = self._console.control.table.topics.policy(path)
        kept = not policy.queue and (settings.topics.retain_all if policy.retain is None else policy.retain)
        async with self._reading:
            erased = self._console.control.erasures.scopes
            return await asyncio.to_thread(last_messages, reachable_kafka(settings), path, kept=kept, erased=erased)

    def _left(self, request: Request, at: str, q: str) -> dict[str, Any]:
        """The tree, or the results of a search in it."""
        draft = self.draft(principal_of(request.scope))
        tree = self._console.control.table.topics
        values: dict[str, Any] = {"at": at, "q": q, "gathered": _paths(draft.edits), "wrong": "", "searched": bool(q)}
        with as_if(tree, draft.edits, large=False):
            try:
                if q:
                    level = browsing.found(tree, q)
                else:
                    level = browsing.unfolded(tree, at, request.query_params.get("after", ""))
            except ExpressionError as error:
                values["wrong"] = str(error)
                level = browsing.Level("")
            return {**values, "level": level, "topics": len(tree)}

    def _detail(self, principal: Principal, at: str) -> dict[str, Any]:
        console, draft = self._console, self.draft(principal)
        tree = console.control.table.topics
        path = TopicPath(at)
        there = self._subtree(path) if at else Subtree(0, 0)
        with as_if(tree, draft.edits, large=False):
            record = tree.get(path)
            is_node = bool(at) and tree.is_node(path)
            changed = Subtree.of(tree, path) if draft.edits and there.topics <= LARGE else there
            total = len(tree)
        above = parent_of(path) if at else None
        shared = {
            "total": total,
            "base_dn": console.settings.directory.base_dn,
            "routing": fields.ROUTING,
            "reaches": fields.REACHES,
            "inherited": (tree.distribution(above) if above else "") or EVERYWHERE,
        }
        if not is_node:
            return {**shared, "node": None, "record": None}
        mine = next((edit for edit in reversed(draft.edits) if isinstance(edit, PutEdit) and edit.path == at), None)
        base = mine.base if mine else tree.get(path)
        below = changed.topics - (record is not None)
        namespace, name = browsing.names_of(path)
        return {
            "node": {
                "path": at,
                "name": name,
                "namespace": namespace,
                "trail": browsing.trail(path),
                "dn": browsing.dn_of(path, console.settings.directory.base_dn),
                "below": below,
                "base": fields.as_base(base),
                "subtree": f"{there.topics}:{there.sum}",
                "gathered": mine is not None,
            },
            **shared,
            "record": record,
            "retain_all": console.settings.topics.retain_all,
            "subscribers": recipients(console.control, path, _SUBSCRIBERS),
            "fan_out": console.control.table.fan_out(path),
        }

    def _subtree(self, path: TopicPath) -> Subtree:
        """Counted once for each state of the trees: below the root of a million topics it takes a second."""
        changes = self._console.state.topic_changes
        if self._counted_at != changes or len(self._counted) > _COUNTED:
            self._counted.clear()
            self._counted_at = changes
        if path not in self._counted:
            self._counted[path] = Subtree.of(self._console.control.table.topics, path)
        return self._counted[path]


def _person(principal: Principal) -> str:
    return principal.name or principal.session


def _paths(edits: list[Edit]) -> set[str]:
    """The nodes that the edits are about."""
    found: set[str] = set()
    for edit in edits:
        if not isinstance(edit, ImportEdit):
            found.add(edit.path)
            found.add(getattr(edit, "target", edit.path))
    return found
