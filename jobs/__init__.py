"""What you start: the command line, the gateway process, the spark-submit entry, the embedded stack, settings.

Wiring only: it reads settings, builds the parts of the other packages and runs them; it decides nothing about
notifications. No file directly in here may carry the name of a package we import (`kafka`, `dispatch`, ...):
spark-submit puts a script's own folder first on the import path.
"""

from __future__ import annotations
