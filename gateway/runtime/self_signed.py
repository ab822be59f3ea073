"""Self-signed certificates for servers with clients that do not validate them."""

import datetime
import os
import ssl
import tempfile

VALID = datetime.timedelta(days=3650)
"""Longer than any process lives: each makes its own."""


def load_self_signed(context: ssl.SSLContext) -> None:
    """Give a server's context a new key and certificate, which never lie in a directory."""
    pem = self_signed()
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(file, pem)
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        return
    with tempfile.NamedTemporaryFile() as named:  # not on Linux
        named.write(pem)
        named.flush()
        context.load_cert_chain(named.name)


def self_signed() -> bytes:
    """Return a new certificate and its key, in PEM. The libraries take 30 ms to load: only where needed."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kvgate")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("kvgate")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private + certificate.public_bytes(encoding)
