"""Scripts for spark-submit: `dispatch_stream.py`.

spark-submit puts this folder first on the import path, so no file in it may have the name of a package.
"""

from __future__ import annotations
