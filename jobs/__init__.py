"""What you start: the command line, the gateway process, the spark-submit entry, the embedded engine, settings.

Wiring only: it reads settings, builds the parts of the other packages and runs them; it decides nothing about
notifications. No file directly in here may have the name of a package that we import (`kafka`, `dispatch`, ...):
spark-submit puts a script's own folder first on the import path.
"""

from __future__ import annotations
