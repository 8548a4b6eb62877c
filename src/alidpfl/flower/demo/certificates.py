"""A certificate authority, a server certificate and node keys for trying a deployment out."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from alidpfl.errors import ConfigError
from alidpfl.store.files import disk_errors

AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "server.pem", "server.key"
_DAYS = 365
_BACKDATED = datetime.timedelta(hours=1)  # clocks of other machines may be behind
_PRIVATE, _PUBLIC = 0o600, 0o644
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


def make_certificates(folder: Path, *, hosts: Sequence[str], nodes: int) -> list[Path]:
    """Write all files into a new or empty folder; private keys are the owner's alone.

    The server's certificate is for `hosts` and always for the machine itself: a SuperLink on 0.0.0.0 calls itself at
    127.0.0.1, and runs nothing where that fails.
    """
    if nodes < 1:
        raise ConfigError(f"nodes={nodes} must be at least 1")
    with disk_errors("create", folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: keys that are in use are not written over; give another folder")
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = _authority(authority_key)
    files = {
        AUTHORITY: _pem(authority),
        AUTHORITY_KEY: _private(authority_key),
        CERTIFICATE: _pem(_server(server_key, authority, authority_key, [*dict.fromkeys([*hosts, *_THIS_MACHINE])])),
        KEY: _private(server_key),
    }
    for number in range(1, nodes + 1):
        node_key = ec.generate_private_key(ec.SECP384R1())
        files |= {f"node_{number}": _openssh(node_key), f"node_{number}.pub": _openssh_public(node_key)}
    return [_written(folder / name, content) for name, content in files.items()]


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "alidpfl trial authority")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _dated(x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()))
    return (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )


def _server(
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(authority.subject).public_key(key.public_key())
    return (
        _dated(builder)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def _dated(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=_DAYS)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(now - _BACKDATED).not_valid_after(end)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except (TypeError, ValueError):
        raise ConfigError(f"--host {host!r} is neither an address nor a host name in ASCII") from None


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return _serialised(key, serialization.PrivateFormat.PKCS8)


def _openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    return _serialised(key, serialization.PrivateFormat.OpenSSH)


def _serialised(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _openssh_public(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, form)


def _written(path: Path, content: bytes) -> Path:
    is_public = path.suffix in {".crt", ".pem", ".pub"}
    with disk_errors("write", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PUBLIC if is_public else _PRIVATE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    return path
