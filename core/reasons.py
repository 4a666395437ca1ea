"""Reasons of failed connections, reads and writes in plain words.

Libraries wrap system errors in several layers of exceptions; the actionable reason is the innermost: connection
refused, unknown host, no permission, disk full.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

_BY_NUMBER = {
    errno.ECONNREFUSED: "no process listens there",
    errno.EHOSTUNREACH: "there is no route to that host",
    errno.ENETUNREACH: "there is no route to that network",
    errno.EADDRINUSE: "another process listens there",
    errno.EADDRNOTAVAIL: "that is not an address of this machine",
    errno.ENOSPC: "the disk is full: make room",
    errno.EDQUOT: "the user's disk quota is exceeded: make room",
    errno.EFBIG: "the file would be larger than this user may write",
    errno.EROFS: "the disk is mounted read-only",
    errno.EACCES: "this user may not read or write it",
    errno.EPERM: "this user is not allowed to",
    errno.ENOENT: "there is no such file or folder",
    errno.EISDIR: "that is a folder, not a file",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
    errno.EMFILE: "this process has too many open files (ulimit -n)",
}

# OpenSSL's reasons when a TLS client connects to a server without TLS.
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING"}


def reason_of(error: BaseException) -> str:
    """The reason of a failure in words, by its innermost known cause; else the exception's own message."""
    for each in _causes(error):
        text = _describe(each)
        if text:
            return text
    return str(error) or type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        # urllib3 keeps the cause as `reason`, requests and http.client among the arguments.
        parts = (*each.args, getattr(each, "reason", None), each.__cause__, each.__context__)
        pending += [part for part in parts if isinstance(part, BaseException)]


def _describe(error: BaseException) -> str:
    # An exception of a module that is not loaded cannot occur, and loading network modules is slow.
    modules = sys.modules
    if (ssl := modules.get("ssl")) and isinstance(error, ssl.SSLError):
        return _describe_tls(error)
    if (socket := modules.get("socket")) and isinstance(error, socket.gaierror):
        temporary = error.errno == socket.EAI_AGAIN
        return "its name cannot be resolved now" if temporary else "there is no host with that name"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)):
        return "it closed the connection without an answer"
    if (client := modules.get("http.client")) and isinstance(error, client.HTTPException):
        return "the server there does not speak HTTP"
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, UnicodeError):
        return "that is not a host name"
    if isinstance(error, OSError) and type(error).__module__ == "builtins":
        return _BY_NUMBER.get(error.errno or 0, error.strerror or "")
    return ""


def _describe_tls(error: ssl.SSLError) -> str:
    reason: str = getattr(error, "reason", None) or "no reason was given"
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"its certificate is not accepted: {getattr(error, 'verify_message', '') or 'it cannot be verified'}"
    if reason in _NO_TLS:
        return "it does not speak TLS (http:// rather than https://?)"
    return f"TLS cannot be agreed on: {reason.replace('_', ' ').lower()}"
