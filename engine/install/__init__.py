"""What is fetched before the first start: Java, jars, the archive of classes. And what packages of us are made of."""

from __future__ import annotations
