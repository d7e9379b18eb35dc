"""A certificate authority of tests, and what it has signed, as files."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from pathlib import Path

KEY_PASSWORD = "canary-key-password"
_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _builder(
    name: str, issuer: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    """Return a certificate with the identifiers that RFC 5280 wants, and Python 3.13 looks for."""
    now = datetime.now(UTC)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(own, critical=False)
        .add_extension(authority, critical=False)
    )


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files, PEM all."""

    ca: Path
    broker: Path  # for 127.0.0.1, with its key
    reader: Path
    reader_key: Path  # encrypted


def make_certificates(folder: Path, authority: str = "authority") -> Certificates:
    """Make an authority, a broker's certificate and a reader's."""
    key = ec.generate_private_key(ec.SECP256R1())
    folder.mkdir(exist_ok=True)
    ca = (
        _builder(authority, authority, key, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS, critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    files = Certificates(
        folder / "ca.pem", folder / "broker.pem", folder / "reader.pem", folder / "reader.key"
    )
    files.ca.write_bytes(ca.public_bytes(pem))
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    for name in ("broker", "reader"):
        own = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, authority, own, key).add_extension(host, critical=False)
        signed = builder.sign(key, hashes.SHA256()).public_bytes(pem)
        password = KEY_PASSWORD.encode()
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if name == "reader":
            encryption = serialization.BestAvailableEncryption(password)
        secret = own.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption)
        if name == "reader":
            files.reader.write_bytes(signed)
            files.reader_key.write_bytes(secret)
        else:
            files.broker.write_bytes(secret + signed)
    return files
