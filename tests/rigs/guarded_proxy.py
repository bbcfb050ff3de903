"""An HTTP or HTTPS proxy in front of a server that has no passwords: it asks for them itself.

A request without credentials gets 401, one with wrong credentials 403. All others are passed on.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PASSED_ON = ("Content-Type", "Accept")


class GuardedProxy(ThreadingHTTPServer):
    """Passes requests with the right `Authorization` on."""

    def __init__(self, target: str, authorization: str, certificate: Path | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.authorization = target.rstrip("/"), authorization
        scheme = "http"
        if certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: GuardedProxy

    def _answer(self) -> None:
        given = self.headers.get("Authorization")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if given != self.server.authorization:
            code, kind = (401, "NotAuthorizedException") if given is None else (403, "Forbidden")
            told = {"message": f"{kind}: who are you?", "type": kind, "code": code}
            self._send(code, "application/json", json.dumps({"error": told}).encode())
            return
        request = urllib.request.Request(
            self.server.target + self.path, body or None, method=self.command
        )
        for name in PASSED_ON:
            if name in self.headers:
                request.add_header(name, self.headers[name])
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                self._send(answer.status, answer.headers["Content-Type"], answer.read())
        except urllib.error.HTTPError as error:
            with error:
                self._send(error.code, error.headers["Content-Type"], error.read())

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _answer

    def _send(self, code: int, kind: str | None, body: bytes) -> None:
        self.send_response(code)
        if kind is not None:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def guarded_proxy(
    target: str, authorization: str, certificate: Path | None = None
) -> Iterator[GuardedProxy]:
    """Start a proxy, with TLS if it has a certificate. It ends with the block."""
    with GuardedProxy(target, authorization, certificate) as proxy:
        serving = threading.Thread(target=proxy.serve_forever)
        serving.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            serving.join()


def make_certificate(path: Path) -> Path:
    """Write a key for 127.0.0.1 and its self-signed certificate into one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + certificate.public_bytes(pem))
    return path
