"""What you start: the command line, the gateway process, the spark-submit entry, the embedded engine, settings.

    cli/                        `arborcast`
    gateway/, dispatch_stream   the two processes of an engine
    engine/, stack/, demo/      the embedded engine: its commands, its parts, its demonstration
    processes/, install/        child processes; what is fetched before the first start
    settings/                   what is set, read in one place
    monitoring/, notebook/      seeing how it is; asking what happened
    maintenance/                backup, restore, resealing, bundles for clusters
    reference/                  pages of docs/ that are generated from the code
    terminal, progress          what people read, and what they see while they wait

Wiring only: it reads settings, builds the parts of the other packages and runs them; it decides nothing about
notifications. No file directly in here may have the name of a package that we import (`kafka`, `dispatch`, ...):
spark-submit puts a script's own folder first on the import path.
"""

from __future__ import annotations
