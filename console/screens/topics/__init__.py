"""The screen *Topics*: view and change the trees.

tree_pages, browsing  pages, and the visible part of the trees
editing, documents    forms, and whole trees from and to documents
updates               changes by others while the page is open
problems              differences between the directory and the trees
draft, stored_drafts  collected changes and their records, also across restarts
fields                a topic as a form
"""

from __future__ import annotations

from starlette.routing import Route

from arborcast.console.console import Console, Screen
from arborcast.console.screens.topics import problems
from arborcast.console.screens.topics.documents import Documents
from arborcast.console.screens.topics.editing import Editing
from arborcast.console.screens.topics.stored_drafts import Drafts
from arborcast.console.screens.topics.tree_pages import TreePages
from arborcast.console.screens.topics.updates import TopicUpdates


def routes(console: Console) -> list[Route]:
    pages = TreePages(console, Drafts(console.settings.home / "console-drafts"))
    parts = (pages, Editing(console, pages), Documents(console, pages), TopicUpdates(console))
    return [*(route for part in parts for route in part.routes()), *problems.routes(console)]


SCREEN = Screen("topics", "Topics", "/topics", routes)
