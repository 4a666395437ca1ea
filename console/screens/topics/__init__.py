"""The screen *Topics*: look at the trees, and change them.

looking, browsing   pages, and what is shown of the trees
editing, documents  forms, and whole trees from and to documents
news                what happens while somebody looks
problems            what the directory and the trees do not agree on
draft, kept         edits that were gathered, and what they come to; everybody's, also after a restart
fields              a topic as a form
"""

from __future__ import annotations

from starlette.routing import Route

from arborcast.console.console import Console, Screen
from arborcast.console.screens.topics.documents import Documents
from arborcast.console.screens.topics.editing import Editing
from arborcast.console.screens.topics.kept import Drafts
from arborcast.console.screens.topics.looking import Looking
from arborcast.console.screens.topics.news import News
from arborcast.console.screens.topics.problems import DirectoryProblems


def routes(console: Console) -> list[Route]:
    """What the screen answers."""
    looking = Looking(console, Drafts(console.settings.home / "console-drafts"))
    parts = (looking, Editing(console, looking), Documents(console, looking), News(console), DirectoryProblems(console))
    return [route for part in parts for route in part.routes()]


SCREEN = Screen("topics", "Topics", "/topics", routes)
