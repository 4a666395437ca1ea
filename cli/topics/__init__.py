"""`arborcast topics`: show the topic tree of the running engine and change it.

    showing     topics and their subscriptions
    changing    topics one by one
    documents   import and export of whole trees
    units       the LDAP tree of another system

They parse options and print results of `admin`.
"""

from __future__ import annotations

import typer

from arborcast.cli.common import SUBSCRIBING, CommandGroup
from arborcast.cli.topics import changing, documents, showing

topics_app = CommandGroup(help="Show and change the topic tree.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    for module in (showing, changing, documents):
        module.register(topics_app)
    app.add_typer(topics_app, name="topics", rich_help_panel=SUBSCRIBING)
