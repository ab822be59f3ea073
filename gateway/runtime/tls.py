"""TLS on both sides: contexts made of files, and kept as new as the files are.

    files ──make──► context ──► handshakes that begin now
      ▲ looked at every few seconds; a pair is written file by file, so a change counts once it was
      │ seen twice; what does not load leaves the old context in use, and is logged once

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

log = logging.getLogger("kvgate.tls")

LOOK_INTERVAL_S = 1.0
"""Between two looks at the files: short beside the hour or more by which certificates are renewed early."""
_ALPN = ["http/1.1"]

_Fingerprint = tuple[tuple[int, int, int] | None, ...]


class Tls:
    """A context that follows its files. `make` raises ConfigError where they cannot be used."""

    def __init__(self, name: str, files: Sequence[str], make: Callable[[], ssl.SSLContext]) -> None:
        self._name = name
        self.files = [file for file in files if file]
        self._make = make
        self._loaded = self._seen = _fingerprint(self.files)
        self.context = make()

    def __repr__(self) -> str:
        return f"Tls({self._name}, {', '.join(self.files)})"

    def look(self) -> str | None:
        """Load the files anew if they have changed, and were the same at the last look: "loaded" or
        "refused"; None where there was nothing to do."""
        before, self._seen = self._seen, _fingerprint(self.files)
        if self._seen == self._loaded or self._seen != before:
            return None
        self._loaded = self._seen
        try:
            self.context = self._make()
        except ConfigError as exc:
            log.error("%s changed and cannot be used, the one before stays: %s", self._name, exc)
            return "refused"
        log.info("%s changed and is in use: %s", self._name, ", ".join(self.files))
        return "loaded"


async def follow(every: Sequence[Tls], counts: Counter[str], interval_s: float = LOOK_INTERVAL_S) -> None:
    """Look at the files for ever, and count what came of it. In a thread: they may lie on a network."""
    while True:
        await asyncio.sleep(interval_s)
        for tls in every:
            if result := await asyncio.to_thread(tls.look):
                counts[result] += 1


def listening_tls(cert_file: str, key_file: str) -> Tls | None:
    """What the gateway shows to clients; None where it is to speak plainly. Raises ConfigError."""
    if not cert_file:
        if key_file:
            raise ConfigError("tls_key_file: is given without tls_cert_file")
        return None

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION
        _load_chain(context, "tls_cert_file", cert_file, "tls_key_file", key_file)
        return _common(context)

    return Tls("the certificate for clients", [cert_file, key_file], make)


def listening_context(tls: Tls) -> ssl.SSLContext:
    """The one context of a server's life: each handshake is given the newest certificate."""
    outer = tls.context

    def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if tls.context is not context:
            connection.context = tls.context

    outer.sni_callback = choose
    return outer


def worker_tls(ca_file: str = "", cert_file: str = "", key_file: str = "") -> Tls:
    """How workers with https URLs are verified, and what is shown to them. Raises ConfigError."""
    if key_file and not cert_file:
        raise ConfigError("worker_cert_key_file: is given without worker_cert_file")

    def make() -> ssl.SSLContext:
        _check_pem("worker_ca_file", ca_file, b"CERTIFICATE-----")
        try:
            context = ssl.create_default_context(cafile=ca_file or None)
        except ssl.SSLError as exc:
            raise ConfigError(f"worker_ca_file: {ca_file} cannot be used: {_words(exc)}") from exc
        if cert_file:
            _load_chain(context, "worker_cert_file", cert_file, "worker_cert_key_file", key_file)
        return _common(context)

    return Tls("TLS to workers", [ca_file, cert_file, key_file], make)


def reason(exc: BaseException) -> str | None:
    """A TLS failure in words, also one that a client library has wrapped; None where it is none."""
    while wrapped := getattr(exc, "os_error", None) or getattr(exc, "certificate_error", None):
        exc = wrapped
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {exc.verify_message}{_hint(exc.verify_code)}"
    if isinstance(exc, ssl.SSLError) or _OPENSSL.search(str(exc)):
        return f"TLS: {_words(exc)}"
    return None


_OPENSSL = re.compile(r"\[SSL: (\w+)\]")
"""OpenSSL's name for a failure, in an exception's text: aiohttp keeps no more of an alert that comes late."""
_SAID = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS on this port",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client certificate, see --worker-cert-file",
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


def _common(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    return context


def _load_chain(context: ssl.SSLContext, cert: str, cert_file: str, key: str, key_file: str) -> None:
    """`cert` and `key` are the options' names. The key may be in the certificate's file."""
    key, key_file = (key, key_file) if key_file else (cert, cert_file)
    _check_pem(cert, cert_file, b"CERTIFICATE-----")
    _check_pem(key, key_file, b"PRIVATE KEY-----")

    def no_password() -> str:
        raise ConfigError(f"{key}: {key_file} is encrypted; there is nobody to ask for its password")

    try:
        context.load_cert_chain(cert_file, key_file, password=no_password)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key}: {key_file} is not the key of {cert_file}") from exc
        raise ConfigError(f"{cert}: {cert_file} with {key_file} cannot be used: {_words(exc)}") from exc
    except OSError as exc:
        raise ConfigError(f"{cert}: {cert_file} with {key_file} cannot be read: {exc.strerror}") from exc


def _check_pem(option: str, file: str, mark: bytes) -> None:
    """OpenSSL does not say which file it could not read, nor that one holds something else."""
    if not file:
        return
    try:
        content = Path(file).read_bytes()
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigError(f"{option}: {file} cannot be read: {reason}") from exc
    if mark not in content:
        what = mark.strip(b"-").decode().lower()
        raise ConfigError(f"{option}: {file} holds no {what} in PEM form")


def _fingerprint(files: Sequence[str]) -> _Fingerprint:
    """What changes with a file's content, behind any symbolic links; None for one that is missing."""
    return tuple(map(_stat, files))


def _stat(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
