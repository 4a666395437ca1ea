"""The editable directory of the topic tree: an LDIF file or an LDAP server, synchronised with the control log in both
directions.

entries/   entries and their mapping to topics
stores/    an LDIF file, an LDAP server
sync/      the synchronisation

The LDAP schema is in `arborcast.schema` (slapd.conf) and `arborcast.ldif` (cn=config).
"""

from __future__ import annotations
