"""Downloads before the first start: Java, jars, the archive of classes; and the builds of our own packages."""

from __future__ import annotations
