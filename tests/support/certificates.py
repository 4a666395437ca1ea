"""A certificate authority and its certificates, made with openssl, for tests of TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificates:
    """PEM files in one folder. Each name has a certificate `name.pem` and a key `name.key`."""

    folder: Path

    @property
    def authority(self) -> str:
        return str(self.folder / "ca.pem")

    def certificate(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def key(self, name: str) -> str:
        return str(self.folder / f"{name}.key")

    def server(self, name: str = "server", *, ask_client: bool = False) -> ssl.SSLContext:
        """The TLS context of a server with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate(name), self.key(name))
        if ask_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.authority)
        return context


def make_certificates(folder: Path) -> Certificates:
    """`server` is for 127.0.0.1, `elsewhere` for another host, `client` is for clients, `stranger` is self-signed."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True)

    def self_signed(name: str, *more: str) -> None:
        run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem", *more)  # fmt: skip

    # Python 3.13 accepts no authority without a key usage.
    self_signed("ca", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    self_signed("stranger", "-addext", "subjectAltName=IP:127.0.0.1")
    for name, extension in (
        ("server", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        ("elsewhere", "subjectAltName=DNS:elsewhere.example"),
        ("client", "extendedKeyUsage=clientAuth"),
    ):
        (folder / f"{name}.ext").write_text(extension + "\n")
        run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
            "-extfile", f"{name}.ext", "-out", f"{name}.pem")  # fmt: skip
    return Certificates(folder)
