"""A certificate for an embedded service on this machine, made when the service starts."""

from __future__ import annotations

import ipaddress
import secrets
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_VALID = timedelta(days=30)
_PEM = serialization.Encoding.PEM


class LocalCertificate:
    """A certificate for localhost and 127.0.0.1 that is signed with its own key.

    `path` is the file that clients have to trust, as PEM, and `server_tls` what a server needs that
    speaks HTTP/2 and HTTP/1.1 over TLS. The private key is nowhere else: a process that is killed
    leaves the certificate behind, and no key.
    """

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="fanout-certificate-")
        self.path = Path(self._directory.name, "certificate.pem")
        key = ec.generate_private_key(ec.SECP256R1())
        self.path.write_bytes(_certify(key).public_bytes(_PEM))
        self.server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server_tls.set_alpn_protocols(["h2", "http/1.1"])
        # ssl reads a key from a file only, which may be encrypted.
        password = secrets.token_urlsafe()
        with NamedTemporaryFile(dir=self._directory.name) as file:
            file.write(
                key.private_bytes(
                    _PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.BestAvailableEncryption(password.encode()),
                )
            )
            file.flush()
            self.server_tls.load_cert_chain(self.path, file.name, password)

    def remove(self) -> None:
        """Delete the files."""
        self._directory.cleanup()


def _certify(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
