"""Keys for a trial deployment: a certificate authority, a server certificate and the nodes' keys."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from alidpfl.errors import ConfigError
from alidpfl.store.files import disk_errors

AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "server.pem", "server.key"

_DAYS = datetime.timedelta(days=365)
_BACKDATED = datetime.timedelta(hours=1)  # clocks of other machines may be behind
_PRIVATE, _PUBLIC = 0o600, 0o644
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


def make_certificates(folder: Path, *, hosts: Sequence[str], nodes: int) -> list[Path]:
    """Write all files into a new or empty folder, and return their paths. Only the owner can read private keys.

    The server's certificate is for `hosts` and always for this machine: a SuperLink on 0.0.0.0 calls itself at
    127.0.0.1, and starts no run if that fails.
    """
    if nodes < 1:
        raise ConfigError(f"nodes={nodes} must be at least 1")
    with disk_errors("create", folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty, and keys in use are never overwritten; give another folder")
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = _authority(authority_key)
    server = _server(server_key, authority, authority_key, [*dict.fromkeys([*hosts, *_THIS_MACHINE])])
    files = {
        AUTHORITY: authority.public_bytes(serialization.Encoding.PEM),
        AUTHORITY_KEY: _private(authority_key, serialization.PrivateFormat.PKCS8),
        CERTIFICATE: server.public_bytes(serialization.Encoding.PEM),
        KEY: _private(server_key, serialization.PrivateFormat.PKCS8),
    }
    for number in range(1, nodes + 1):
        key = ec.generate_private_key(ec.SECP384R1())
        form = serialization.PublicFormat.OpenSSH
        files[f"node_{number}"] = _private(key, serialization.PrivateFormat.OpenSSH)
        files[f"node_{number}.pub"] = key.public_key().public_bytes(serialization.Encoding.OpenSSH, form)
    return [_written(folder / name, content) for name, content in files.items()]


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "alidpfl trial authority")])
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    nothing_else = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **nothing_else)
    return (
        _certificate(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
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
    return (
        _certificate(name, authority.subject, key)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def _certificate(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _BACKDATED).not_valid_after(now + _DAYS)


def _alternative(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except (TypeError, ValueError):
        raise ConfigError(f"--host {host!r} must be an address or a host name in ASCII") from None


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _written(path: Path, content: bytes) -> Path:
    is_public = path.suffix in {".crt", ".pem", ".pub"}
    with disk_errors("write", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PUBLIC if is_public else _PRIVATE)
        with open(descriptor, "wb") as file:
            file.write(content)
    return path
