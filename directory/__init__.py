"""The topic tree's home for people: an LDIF file or an LDAP server, and the two-way sync with the control log.

    entries/    what a directory holds, and the topics that it stands for
    stores/     an LDIF file, an LDAP server
    sync/       both ways

The LDAP schema is in `arborcast.schema` (slapd.conf) and `arborcast.ldif` (cn=config).
"""

from __future__ import annotations
