"""What you start: the command line, the gateway process, the spark-submit entry, the embedded stack, settings.

    cli/            `arborcast`
    stack/, demo/   the embedded engine; its demonstration
    gateway/, dispatch_stream       the two processes of an engine, embedded or not
    settings, outbound      what is set, read in one place; what of it decides where may be connected to
    terminal, printable_console     what people read
    running         where the parts of an engine are now
    monitoring/, notebook/  seeing how it is; asking what happened
    backup/, drill, resealing       what an operator does now and then
    bundle          what a Spark cluster gets
    reference/      pages of docs/ that are generated from the code

Wiring only: it reads settings, builds the parts of the other packages and runs them; it decides nothing about
notifications. No file directly in here may carry the name of a package we import (`kafka`, `dispatch`, ...):
spark-submit puts a script's own folder first on the import path.
"""

from __future__ import annotations
