"""Contexts from files, errors in files, and reloads; tests/blackbox has sockets."""

import asyncio
import logging
import os
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from gateway.core.errors import ConfigError
from gateway.runtime.tls import Tls, follow, grpc_tls, listening_context, listening_tls, reason, worker_tls
from tests.support.certificates import Authority, Mounted, Pair, serial
from tests.support.patience import until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost") -> ssl.SSLObject:
    """Do a handshake in memory; returns the client's end of it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ends = [ours, theirs]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
    return ours


def shown(server: ssl.SSLContext, authority: Authority) -> object:
    certificate = shake(server, authority.context()).getpeercert()
    assert certificate
    return certificate["serialNumber"]


def loaded(pair: Pair) -> Tls:
    tls = listening_tls(pair.cert, pair.key)
    assert tls
    return tls


# versions --------------------------------------------------------------------------------------


def test_http_1_1_over_tls_1_2_or_later_is_spoken(authority: Authority) -> None:
    server = listening_context(loaded(authority.issue()))
    client = authority.context()
    client.set_alpn_protocols(["h2", "http/1.1"])
    assert shake(server, client).selected_alpn_protocol() == "http/1.1"
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake(server, client).version() == "TLSv1.2"


def test_older_versions_are_rejected(authority: Authority) -> None:
    server = listening_context(loaded(authority.issue()))
    client = authority.context()
    client.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        client.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning):
        client.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        shake(server, client)


def test_without_a_certificate_there_is_no_tls() -> None:
    assert listening_tls("", "") is None


def test_the_key_may_be_in_the_same_file(authority: Authority, tmp_path: Path) -> None:
    pair, both = authority.issue(), tmp_path / "both.pem"
    both.write_text(Path(pair.key).read_text() + Path(pair.cert).read_text())
    assert listening_tls(str(both), "")


def test_a_worker_is_verified_and_gets_a_client_certificate(authority: Authority) -> None:
    client = worker_tls(authority.file, *vars(authority.issue("gateway")).values()).context
    server = authority.issue().context(clients_of=authority)
    assert shake(server, client).version() == "TLSv1.3"
    assert (client.verify_mode, client.check_hostname) == (ssl.CERT_REQUIRED, True)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, client, "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, worker_tls().context)  # the system's authorities only


# unusable files --------------------------------------------------------------------------------


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        make()
    return str(caught.value)


def test_missing_or_unreadable_files_are_rejected(authority: Authority, tmp_path: Path) -> None:
    pair, missing, other = authority.issue(), str(tmp_path / "missing"), str(tmp_path / "other")
    Path(other).write_text("hello")
    assert refused(lambda: listening_tls(missing, pair.key)) == (
        f"tls_cert_file: {missing} cannot be read: No such file or directory"
    )
    assert refused(lambda: listening_tls(pair.cert, missing)).startswith(f"tls_key_file: {missing} cannot be")
    assert refused(lambda: listening_tls(other, pair.key)) == (
        f"tls_cert_file: {other} has no certificate in PEM format"
    )
    assert refused(lambda: listening_tls(pair.cert, other)) == (
        f"tls_key_file: {other} has no private key in PEM format"
    )
    assert refused(lambda: listening_tls(pair.cert, "")) == (
        f"tls_cert_file: {pair.cert} has no private key in PEM format"
    )
    assert refused(lambda: listening_tls("a\0b", "")).startswith(
        "tls_cert_file: a\0b cannot be read: embedded"
    )
    assert refused(lambda: worker_tls(missing)).startswith(f"worker_ca_file: {missing} cannot be read")
    assert refused(lambda: worker_tls(other)).startswith(f"worker_ca_file: {other} has no certificate")
    assert refused(lambda: worker_tls("", other)).startswith(f"worker_cert_file: {other} has no certificate")


def test_files_of_different_pairs_are_rejected(authority: Authority) -> None:
    first, second = authority.issue(), authority.issue()
    assert refused(lambda: listening_tls(first.cert, second.key)) == (
        f"tls_key_file: {second.key} is not the key of {first.cert}"
    )


def test_damaged_files_are_rejected(authority: Authority) -> None:
    pair = authority.issue()
    damaged = "-----BEGIN {0}-----\nAAAA\n-----END {0}-----\n"
    Path(pair.cert).write_text(damaged.format("CERTIFICATE"))
    error = refused(lambda: listening_tls(pair.cert, pair.key))
    assert error.startswith(f"tls_cert_file: {pair.cert} with {pair.key} cannot be used: ")
    assert refused(lambda: worker_tls(pair.cert)).startswith(f"worker_ca_file: {pair.cert} cannot be used: ")


def test_a_key_with_a_password_is_rejected_without_a_prompt(authority: Authority) -> None:
    from cryptography.hazmat.primitives import serialization as form

    pair = authority.issue()
    key = form.load_pem_private_key(Path(pair.key).read_bytes(), None)
    Path(pair.key).write_bytes(
        key.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"secret")
        )
    )
    assert refused(lambda: listening_tls(pair.cert, pair.key)) == (
        f"tls_key_file: {pair.key} is encrypted; give an unencrypted key"
    )


def test_a_key_without_a_certificate_is_rejected() -> None:
    assert refused(lambda: listening_tls("", "k")) == "tls_key_file: needs tls_cert_file"
    assert refused(lambda: worker_tls("", "", "k")) == "worker_cert_key_file: needs worker_cert_file"


# changed files ---------------------------------------------------------------------------------


def test_a_new_pair_is_used_once_it_is_stable(authority: Authority, tmp_path: Path) -> None:
    first, second = authority.issue(), authority.issue()
    mounted = Mounted(tmp_path / "secret", first)
    tls = loaded(mounted)
    server = listening_context(tls)
    tls.look()
    assert shown(server, authority) == serial(first.cert)
    mounted.swap(second)
    tls.look()  # a writer may be busy
    assert shown(server, authority) == serial(first.cert)
    tls.look()
    assert shown(server, authority) == serial(second.cert)
    mounted.swap(first)
    tls.look()
    tls.look()
    assert shown(server, authority) == serial(first.cert)


def test_pairs_replaced_in_place_are_reloaded(authority: Authority) -> None:
    """Scripts such as certbot keep the names and change the content."""
    pair, renewed = authority.issue(), authority.issue()
    tls = loaded(pair)
    Path(pair.cert).write_bytes(Path(renewed.cert).read_bytes())
    tls.look()
    Path(pair.key).write_bytes(Path(renewed.key).read_bytes())
    tls.look()  # not the same as at the check before
    tls.look()
    assert shown(listening_context(tls), authority) == serial(renewed.cert)


@pytest.mark.parametrize("harm", ["mismatch", "missing", "damaged"])
def test_an_invalid_pair_keeps_the_old_one_and_is_logged_once(
    authority: Authority, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    pair, other = authority.issue(), authority.issue()
    before, key = serial(pair.cert), Path(pair.key).read_bytes()
    tls = loaded(pair)
    if harm == "missing":
        Path(pair.key).unlink()
    else:
        Path(pair.key).write_bytes(Path(other.key).read_bytes() if harm == "mismatch" else b"x")
    with caplog.at_level(logging.INFO, "kvgate.tls"):
        for _ in range(5):
            tls.look()
        assert [r.levelno for r in caplog.records] == [logging.ERROR]
        assert pair.key in caplog.text
        assert shown(listening_context(tls), authority) == before
        Path(pair.key).write_bytes(key + b"\n")
        for _ in range(3):
            tls.look()
    assert [r.levelno for r in caplog.records] == [logging.ERROR, logging.INFO]


def test_a_resumed_session_needs_no_certificate(authority: Authority) -> None:
    """Sessions are kept by the server's one context, which stays when the certificate changes."""
    pair, renewed = authority.issue(), authority.issue()
    tls = loaded(pair)
    server = listening_context(tls)
    client = authority.context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2  # where the session exists after the handshake
    first = shake(server, client)
    for name in ("cert", "key"):
        Path(getattr(pair, name)).write_bytes(Path(getattr(renewed, name)).read_bytes())
    tls.look()
    tls.look()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    again = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=first.session)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for end in (again, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert again.session_reused


async def test_reloads_are_counted(authority: Authority) -> None:
    pair, other = authority.issue(), authority.issue()
    tls, counts = loaded(pair), Counter[str]()
    following = asyncio.get_running_loop().create_task(follow([tls], counts, 0.001))
    for name, result in (("key", "rejected"), ("cert", "loaded")):
        os.replace(getattr(other, name), getattr(pair, name))
        await until(lambda result=result: counts[result])  # type: ignore[misc]
    following.cancel()
    assert counts == {"rejected": 1, "loaded": 1}


def test_watched_files_are_listed(authority: Authority) -> None:
    pair = authority.issue()
    assert repr(loaded(pair)) == f"Tls(the certificate for clients, {pair.cert}, {pair.key})"
    assert worker_tls().files == []


# reasons of failures ---------------------------------------------------------------------------


def failure(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost") -> ssl.SSLError:
    with pytest.raises(ssl.SSLError) as caught:
        shake(server, client, name)
    return caught.value


def test_an_untrusted_worker_has_a_reason(authority: Authority, tmp_path: Path) -> None:
    client = worker_tls(authority.file).context
    stranger = Authority(tmp_path / "stranger").issue().context()
    why = reason(failure(stranger, client))
    assert why and why.startswith("its certificate is not trusted: ")
    assert why.endswith("; is its CA in --worker-ca-file?")
    assert reason(failure(authority.issue(is_expired=True).context(), client)) == (
        "its certificate is not trusted: certificate has expired"
    )
    why = reason(failure(authority.issue("elsewhere").context(), client))
    assert why and why.startswith("its certificate is not trusted: Hostname mismatch")
    assert "--worker-ca-file" not in why


def test_the_reason_of_a_wrapped_failure_is_found(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger").issue().context()
    cause = failure(stranger, worker_tls(authority.file).context)
    assert isinstance(cause, ssl.SSLCertVerificationError)
    key = ConnectionKey("h", 1, True, True, None, None, None)
    for wrapped in (
        aiohttp.ClientConnectorCertificateError(key, cause),
        aiohttp.ClientConnectorSSLError(key, cause),
    ):
        assert reason(wrapped) == reason(cause)


@pytest.mark.parametrize(
    ("openssl", "why"),
    [
        (
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            "TLS: it requires a client certificate, see --worker-cert-file",
        ),
        ("SOME_OTHER", "TLS: some other"),
    ],
)
def test_openssl_errors_have_plain_reasons(openssl: str, why: str) -> None:
    """aiohttp raises some as its own errors, which keep the text only."""
    text = f"[SSL: {openssl}] in other words (_ssl.c:2580)"
    assert reason(ssl.SSLError(1, text)) == reason(aiohttp.ClientOSError(1, text)) == why


def test_other_errors_have_no_tls_reason() -> None:
    assert reason(ConnectionRefusedError(111, "refused")) is None
    assert reason(ssl.SSLError(1, "text")) == "TLS: text"


# the endpoint picker ---------------------------------------------------------------------------


def test_the_pickers_certificate_is_self_signed_without_files_and_speaks_http_2(authority: Authority) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.set_alpn_protocols(["h2"])
    own = authority.issue()
    for tls, files in ((grpc_tls("", ""), []), (grpc_tls(own.cert, own.key), [own.cert, own.key])):
        assert shake(listening_context(tls), client).selected_alpn_protocol() == "h2"
        assert tls.files == files
    assert shown(listening_context(grpc_tls(own.cert, own.key)), authority) == serial(own.cert)


def test_a_pickers_key_without_a_certificate_is_rejected() -> None:
    with pytest.raises(ConfigError, match="epp_key_file: needs epp_cert_file"):
        grpc_tls("", "key.pem")
