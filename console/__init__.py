"""The web console.

__main__     the process: listens, follows the control log, stops in order
app          all screens as one application
console      the context of screens: settings, the state of the log, pages, forms
guard        before any screen: hosts, sessions, rights, and security headers
signing      sign-in and sign-out, for a console on the network
pages        templates and static files
questions    calls of `admin`, in threads
live         parts of pages that update themselves (server-sent events)
lists        what lists have beside their filter: files (`downloads`) and named views (`saved_views`)
screens      one module or folder for each screen

Pages are rendered here and work without script; `static/console.js` adds to them. The console reads the logs and the
tables, as the command line does, and does not need the gateway.
"""

from __future__ import annotations
