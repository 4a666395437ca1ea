"""Topic patterns: what every dialect of topic expressions compiles to, and the normal form they are compared by.

A pattern is an alternation of step lists. It is self-contained (namespaces written out, no prefixes), so a routing
table can be rebuilt from normal forms alone, whatever dialect and declarations the expression had.

Normal form, one line per construct; alternatives are sorted, without repeats, joined by `|`:

    {urn:t}a/b         the topic {urn:t}a/b             (exactly a canonical topic path)
    {urn:t}a/*         children of {urn:t}a
    {urn:t}a//b        every b at any depth below a
    {urn:t}a//*        every strict descendant of a
    {urn:t}a//.        a and every descendant
    {urn:t}*           root topics of urn:t             ({}* : root topics in no namespace)
    {urn:t}//b         every b at any depth in the trees of urn:t
    //.                every topic there is             (what a missing filter means)
    xpath:...          an XPath over the topic set; see `expressions.xpath`
"""

from __future__ import annotations
