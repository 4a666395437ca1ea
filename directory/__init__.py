"""The topic tree's home for people: an LDIF file or an LDAP server, and the two-way sync with the control log.

directory, opening      what a directory is; which one there is
file_directory, ldif    an LDIF file
ldap_directory, ldap_client, ldap_connection    an LDAP server
syncrepl, mirror        being told of changes there, and the copy that they keep current
entries, dn             what both hold
reader, mapping, listing    from entries to topics
changes                 from changes of topics to edits of entries
sync, reconcile, known  both ways: the thread; the decision; what was agreed on last
"""

from __future__ import annotations
