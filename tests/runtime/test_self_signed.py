"""Self-signed certificates: usable, and new each time."""

import ssl
from datetime import timedelta

from cryptography import x509

from gateway.runtime.self_signed import load_self_signed, self_signed


def test_it_is_a_servers_certificate_with_a_key() -> None:
    certificate = x509.load_pem_x509_certificate(self_signed())
    assert certificate.subject == certificate.issuer
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc > timedelta(3650)
    certificate.verify_directly_issued_by(certificate)


def test_each_has_a_key_of_its_own() -> None:
    assert self_signed() != self_signed()


def test_a_context_serves_with_it() -> None:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_self_signed(server)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (server.wrap_bio(to_server, to_client, server_side=True), client.wrap_bio(to_client, to_server))
    num_done = 0
    for side in sides[::-1] * 4:
        try:
            side.do_handshake()
            num_done += 1
        except ssl.SSLWantReadError:
            continue
    assert num_done >= 2 and sides[1].getpeercert(binary_form=True)
