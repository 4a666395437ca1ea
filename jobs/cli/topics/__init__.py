"""`arborcast topics`: look at the topic tree of the running engine and change it.

    group       the commands together
    showing     what there is, and who gets it
    changing    topics one by one
    documents   whole trees from files and to them
    naming      how a topic is named in them
    units       the LDAP tree of another system

What they do, apart from options and printing, is in `jobs.cli.topics_work`.
"""

from __future__ import annotations
