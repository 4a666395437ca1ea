"""The topic tree's home for people: an LDIF file or an LDAP server, and the two-way sync with the control log.

entries/    what both hold: entries and their names, LDIF; from entries to topics and from changes of topics to edits
stores/     what a directory is, an LDIF file or an LDAP server, and which one there is
sync/       both ways: the thread, and what it decides
"""

from __future__ import annotations
