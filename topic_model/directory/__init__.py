"""The topic tree's home for people: an LDIF file or an LDAP server, and the two-way sync with the control log."""

from __future__ import annotations
