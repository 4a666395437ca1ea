"""The innermost cause that a user can act on, in words."""

from __future__ import annotations

import errno
import http.client
import os
import socket
import ssl
from collections.abc import Callable

import pytest
import requests
import urllib3

from arborcast.core.errors import ArborcastError, UnknownResource
from arborcast.core.reasons import reason_of


def refused() -> OSError:
    return ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def uncertified() -> OSError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.reason, error.verify_message = "CERTIFICATE_VERIFY_FAILED", "self-signed certificate"
    return error


def circle() -> BaseException:
    first, second = ValueError("the first"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    return first


def wrapped(cause: BaseException) -> BaseException:
    """As requests and urllib3 wrap it: in the arguments, as the reason, as the cause."""
    connection = urllib3.connection.HTTPConnection("h", 1)
    new = urllib3.exceptions.NewConnectionError(connection, f"Failed to establish a new connection: {cause}")
    new.__cause__ = cause
    pool = urllib3.connectionpool.HTTPConnectionPool("h", 1)
    return requests.ConnectionError(urllib3.exceptions.MaxRetryError(pool, "/", new))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (refused(), "no process listens there"),
        (wrapped(refused()), "no process listens there"),
        (wrapped(socket.gaierror(socket.EAI_NONAME, "Name or service not known")), "there is no host with that name"),
        (wrapped(socket.gaierror(socket.EAI_AGAIN, "Temporary failure")), "its name cannot be resolved now"),
        (TimeoutError("timed out"), "no answer in time"),
        (requests.ConnectionError("Aborted.", http.client.RemoteDisconnected("x")), "it closed the connection"),
        (requests.ConnectionError("Aborted.", http.client.BadStatusLine("x")), "does not speak HTTP"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "it closed the connection"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "TLS"),
        (uncertified(), "its certificate is not accepted: self-signed certificate"),
        (OSError(errno.ENOSPC, "No space left on device", "/a"), "the disk is full: make room"),
        (PermissionError(errno.EACCES, "Permission denied", "/a"), "this user may not read or write it"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("http://h:1/ answered 500"), "http://h:1/ answered 500"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "it is not text in UTF-8"),
        (UnicodeError("label too long"), "that is not a host name"),
        (ValueError("says it in its own words"), "says it in its own words"),
        (ValueError(), "ValueError"),
        (circle(), "the first"),
    ],
)
def test_words(error: BaseException, words: str) -> None:
    assert words in reason_of(error)


def test_an_error_has_one_message() -> None:
    made: Callable[..., ArborcastError] = UnknownResource
    assert str(made("there is no x")) == "there is no x"
    with pytest.raises(TypeError):
        made("there is no x", "x")
