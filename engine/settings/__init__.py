"""What is set, read in one place: files, environment, command line; and what follows from it for the parts."""

from __future__ import annotations
