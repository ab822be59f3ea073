"""TLS contexts for both sides, made from files and reloaded when these change.

    files ──make──► context ──► handshakes that begin now
      ▲ checked every few seconds; a pair is written file by file, so a change counts once it was
      │ seen twice; files that do not load leave the old context in use, which is logged once

A context is never changed once it is in use: another one takes its place.
"""

import asyncio
import logging
import os
import re
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.core.errors import ConfigError
from gateway.runtime.self_signed import load_self_signed

log = logging.getLogger("kvgate.tls")

LOOK_INTERVAL_S = 1.0
"""Time between two checks of the files: short beside the hour or more by which certificates are renewed
early."""
_HTTP1, _HTTP2 = ["http/1.1"], ["h2"]

_Fingerprint = tuple[tuple[int, int, int] | None, ...]


class Tls:
    """Context that follows its files. `make` raises ConfigError for unusable files. Without files it is
    called when the context is first used, since the system's certificates take 20 ms to read."""

    def __init__(self, name: str, files: Sequence[str], make: Callable[[], ssl.SSLContext]) -> None:
        self._name = name
        self.files = [file for file in files if file]
        self._make = make
        self._loaded = self._seen = _fingerprint(self.files)
        self._context = make() if self.files else None

    @property
    def context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = self._make()
        return self._context

    def __repr__(self) -> str:
        return f"Tls({self._name}, {', '.join(self.files)})"

    def look(self) -> str | None:
        """Reload the files if they have changed, and were the same at the last check. Returns "loaded",
        "rejected", or None if unchanged."""
        before, self._seen = self._seen, _fingerprint(self.files)
        if self._seen == self._loaded or self._seen != before:
            return None
        self._loaded = self._seen
        try:
            self._context = self._make()
        except ConfigError as exc:
            log.error("%s: reload rejected, keeping the current one: %s", self._name, exc)
            return "rejected"
        log.info("%s reloaded: %s", self._name, ", ".join(self.files))
        return "loaded"


async def follow(every: Sequence[Tls], counts: Counter[str], interval_s: float = LOOK_INTERVAL_S) -> None:
    """Check the files for ever, and count the results. In a thread, since files may lie on a network."""
    while True:
        await asyncio.sleep(interval_s)
        for tls in every:
            if result := await asyncio.to_thread(tls.look):
                counts[result] += 1


def listening_tls(cert_file: str, key_file: str) -> Tls | None:
    """Return the gateway's certificate for clients; None without TLS. Raises ConfigError."""
    if not cert_file:
        if key_file:
            raise ConfigError("tls_key_file: needs tls_cert_file")
        return None

    def make() -> ssl.SSLContext:
        context = _of_server()
        _load_chain(context, "tls_cert_file", cert_file, "tls_key_file", key_file)
        return _common(context, _HTTP1)

    return Tls("the certificate for clients", [cert_file, key_file], make)


def grpc_tls(cert_file: str, key_file: str) -> Tls:
    """Return the certificate of the endpoint picker: self-signed where no file is given, since gateways do
    not validate it. Raises ConfigError."""
    if key_file and not cert_file:
        raise ConfigError("epp_key_file: needs epp_cert_file")

    def make() -> ssl.SSLContext:
        context = _of_server()
        if cert_file:
            _load_chain(context, "epp_cert_file", cert_file, "epp_key_file", key_file)
        else:
            load_self_signed(context)
        return _common(context, _HTTP2)

    return Tls("the certificate of the endpoint picker", [cert_file, key_file], make)


def listening_context(tls: Tls) -> ssl.SSLContext:
    """Return one context for a server's whole life, which gives each handshake the newest certificate."""
    outer = tls.context

    def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if tls.context is not context:
            connection.context = tls.context

    outer.sni_callback = choose
    return outer


def worker_tls(ca_file: str = "", cert_file: str = "", key_file: str = "") -> Tls:
    """Return the context for workers with https URLs: trusted CAs, and our client certificate. Raises
    ConfigError."""
    if key_file and not cert_file:
        raise ConfigError("worker_cert_key_file: needs worker_cert_file")

    def make() -> ssl.SSLContext:
        _check_pem("worker_ca_file", ca_file, b"CERTIFICATE-----")
        try:
            context = ssl.create_default_context(cafile=ca_file or None)
        except ssl.SSLError as exc:
            raise ConfigError(f"worker_ca_file: {ca_file} cannot be used: {_words(exc)}") from exc
        if cert_file:
            _load_chain(context, "worker_cert_file", cert_file, "worker_cert_key_file", key_file)
        return _common(context, _HTTP1)

    return Tls("TLS to workers", [ca_file, cert_file, key_file], make)


def is_plain_http(exc: BaseException) -> bool:
    """True for a handshake that failed because the client sent an HTTP request without TLS."""
    return isinstance(exc, ssl.SSLError) and exc.reason == "HTTP_REQUEST"


def reason(exc: BaseException) -> str | None:
    """Describe a TLS failure, also one that a client library has wrapped; None for other exceptions."""
    while wrapped := getattr(exc, "os_error", None) or getattr(exc, "certificate_error", None):
        exc = wrapped
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {exc.verify_message}{_hint(exc.verify_code)}"
    if isinstance(exc, ssl.SSLError) or _OPENSSL.search(str(exc)):
        return f"TLS: {_words(exc)}"
    return None


_OPENSSL = re.compile(r"\[SSL: (\w+)\]")
"""OpenSSL's name for a failure, in an exception's text: aiohttp keeps no more of a late alert."""
_SAID = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS on this port",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it requires a client certificate, see --worker-cert-file",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the client certificate of --worker-cert-file",
    "UNEXPECTED_EOF_WHILE_READING": "it closed the connection during the handshake",
}
_UNKNOWN_ISSUERS = frozenset({18, 19, 20, 21})
"""openssl/x509_vfy.h: self-signed, self-signed in the chain, no local issuer, no leaf signature."""


def _hint(verify_code: int) -> str:
    return "; is its CA in --worker-ca-file?" if verify_code in _UNKNOWN_ISSUERS else ""


def _words(exc: BaseException) -> str:
    found = _OPENSSL.search(str(exc))
    return _SAID.get(found[1]) or found[1].lower().replace("_", " ") if found else str(exc)


def _of_server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _common(context: ssl.SSLContext, protocols: list[str]) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(protocols)
    return context


def _load_chain(context: ssl.SSLContext, cert: str, cert_file: str, key: str, key_file: str) -> None:
    """Load a certificate and its key, which may be in one file. `cert` and `key` are the options' names."""
    key, key_file = (key, key_file) if key_file else (cert, cert_file)
    _check_pem(cert, cert_file, b"CERTIFICATE-----")
    _check_pem(key, key_file, b"PRIVATE KEY-----")

    def no_password() -> str:
        raise ConfigError(f"{key}: {key_file} is encrypted; give an unencrypted key")

    try:
        context.load_cert_chain(cert_file, key_file, password=no_password)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key}: {key_file} is not the key of {cert_file}") from exc
        raise ConfigError(f"{cert}: {cert_file} with {key_file} cannot be used: {_words(exc)}") from exc
    except OSError as exc:
        raise ConfigError(f"{cert}: {cert_file} with {key_file} cannot be read: {exc.strerror}") from exc


def _check_pem(option: str, file: str, mark: bytes) -> None:
    """Check a file's PEM marks, since OpenSSL names neither the file nor its wrong contents."""
    if not file:
        return
    try:
        content = Path(file).read_bytes()
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigError(f"{option}: {file} cannot be read: {reason}") from exc
    if mark not in content:
        what = mark.strip(b"-").decode().lower()
        raise ConfigError(f"{option}: {file} has no {what} in PEM format")


def _fingerprint(files: Sequence[str]) -> _Fingerprint:
    """Return file states that change with the content, behind any symbolic links; None for a missing file."""
    return tuple(map(_stat, files))


def _stat(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
