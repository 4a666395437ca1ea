"""The web console: a page for people who define topics and look after the engine.

    __main__   the process: listens, follows the control log, stops in order
    app        all screens as one application
    console    what screens have: settings, the state of the log, pages, forms
    guard      before any screen: hosts, sessions, rights, and headers that keep strangers out
    signing    signing in and out where the console is reached from the network
    pages      templates and static files
    questions  calls of `admin`, in threads
    live       parts of pages that change by themselves (server-sent events)
    screens    one module or folder for each screen

Pages are rendered here and work without script; `static/console.js` adds to them. It works on the logs and the tables,
as the command line does, and does not need the gateway.
"""

from __future__ import annotations
