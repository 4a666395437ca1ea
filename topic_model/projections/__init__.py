"""Folds over the control log, each for one purpose: owners, registrations, pull points, suspensions."""

from __future__ import annotations
