"""What is fetched before the first start: Java, jars, the archive of classes."""

from __future__ import annotations
