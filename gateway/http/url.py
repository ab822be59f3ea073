"""Strict parsing of URLs and HOST:PORT. Text that parsers could read in two ways is rejected with the reason.

Parsers disagree about control characters (stripped or kept), backslashes, percent-encoded hosts and numbers
that stand for IPv4 addresses. A URL that one parser checks and another one connects to leads somewhere else,
so every URL of a worker, an agent, a key set or a Redis is read here.
"""

import ipaddress
import re
from dataclasses import dataclass

from gateway.core.printable import printable

MAX_CHARS = 2048
MAX_NAME_CHARS, MAX_LABEL_CHARS = 253, 63
"""Characters of a DNS name and of its labels (RFC 1035)."""
_SHOWN_CHARS = 120

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PLAIN = re.compile(r"[!-\[\]-~]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,14}|[0-9]{1,9}")
_BASE_PATH = re.compile(r"[A-Za-z0-9_.~!$&'()*+,;=:@/-]*")


@dataclass(frozen=True, slots=True)
class Url:
    """Parsed URL: `host` in lower case and without the brackets of IPv6; `port` None where there is none;
    `query` without question mark."""

    scheme: str
    host: str
    port: int | None
    path: str = ""
    query: str = ""
    userinfo: str = ""

    @classmethod
    def of(cls, text: str) -> "Url":
        """Parse a URL. Raises ValueError with the reason, without credentials."""
        check_characters(text)
        if (found := _URL.fullmatch(text)) is None:
            raise ValueError(f"'{shown(text)}' is not a URL such as http://10.0.0.1:8000")
        scheme, authority, path, query, fragment = found.groups(default="")
        userinfo, _, where = authority.rpartition("@")
        if fragment:
            raise ValueError(f"'{shown(text)}' has a fragment (#...); leave it out")
        try:
            host, port = place(where)
        except ValueError as exc:
            raise ValueError(f"'{shown(text)}': {exc}") from exc
        return cls(scheme.lower(), host, port, path, query[1:], userinfo)

    @property
    def netloc(self) -> str:
        """Host and port as written in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def netloc_of(host: str, port: int) -> str:
    """HOST:PORT as written in a URL."""
    return Url("", host, port).netloc


def host_port(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, with IPv6 addresses in brackets. Raises ValueError."""
    host, port = place(text)
    if port is None:
        raise ValueError(f"'{shown(text)}' names no port; write HOST:PORT")
    return host, port


def place(text: str) -> tuple[str, int | None]:
    """Parse a host and an optional port. Raises ValueError."""
    check_characters(text)
    if text.startswith("["):
        inner, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("an IPv6 address is written in brackets, as in [fd00::1]:8000")
        return _ipv6(inner), _port(rest[1:]) if rest else None
    if text.count(":") > 1:
        raise ValueError("an IPv6 address is written in brackets, as in [fd00::1]:8000")
    host, colon, port = text.partition(":")
    return check_host(host), _port(port) if colon else None


def check_characters(text: str) -> None:
    """Raise ValueError for characters that parsers strip, fold or take for a slash."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"'{shown(text)}' is over {MAX_CHARS} characters")
    if _PLAIN.fullmatch(text):
        return
    for at, character in enumerate(text):
        if character.isspace() or not character.isprintable():
            name = f"U+{ord(character):04X}"
            raise ValueError(f"'{shown(text)}' has a space or control character ({name}) at position {at}")
        if character == "\\":
            raise ValueError(f"'{shown(text)}' has a backslash at position {at}; write /")
        if not character.isascii():
            raise ValueError(
                f"'{shown(text)}' has the character '{character}', which is not ASCII; write an "
                "international name in its ASCII form (xn--...)"
            )


def check_base_path(path: str) -> None:
    """Raise ValueError for a path that a client library would normalize."""
    if "%" in path:
        raise ValueError("percent-encoding in a base path is not supported; use a path without it")
    if not _BASE_PATH.fullmatch(path):
        raise ValueError(f"the path '{path}' has a character that must be percent-encoded")
    if any(segment in ("", ".", "..") for segment in path.split("/")[1:]):
        raise ValueError("the path has an empty segment, '.' or '..'")


def check_host(host: str) -> str:
    """A name or an IPv4 address in lower case. Raises ValueError."""
    host = host.lower()
    labels = host.removesuffix(".").split(".")  # a last dot makes a name absolute, and no different
    if not host:
        raise ValueError("it names no host")
    if "%" in host:
        raise ValueError(f"the host '{host}' is percent-encoded; write it plainly")
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(host)
    if len(host) > MAX_NAME_CHARS:
        raise ValueError(f"the host name is over {MAX_NAME_CHARS} characters")
    for label in labels:
        if len(label) > MAX_LABEL_CHARS:
            raise ValueError(
                f"the host name has a label of {len(label)} characters; {MAX_LABEL_CHARS} are the most"
            )
        if not _LABEL.fullmatch(label):
            raise ValueError(
                f"'{host}' is not a host name" + (" (it has an empty label)" if not label else "")
            )
    return host


def shown(text: str) -> str:
    """Abbreviate a text for messages: without credentials, control characters, or excess length."""
    text = re.sub(r"(?<=//)[^/?#]*@", "...@", text)
    text = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
    return printable(text)


def _port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise ValueError(f"'{text}' is not a port; give a number from 1 to 65535")
    return int(text)


def _ipv4(host: str) -> str:
    """Parse an IPv4 address strictly: resolvers also accept 2852039166, 0xa9.0xfea9fe and 0251.254.43518."""
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError as exc:
        raise ValueError(
            f"'{host}' is not an IPv4 address; write four decimal numbers without leading zeros: 10.0.0.1"
        ) from exc


def _ipv6(text: str) -> str:
    address, percent, zone = text.partition("%")
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError as exc:
        raise ValueError(f"'[{text}]' is not an IPv6 address") from exc
    if found.ipv4_mapped:
        raise ValueError(f"'[{text}]' is an IPv4 address in another form; write {found.ipv4_mapped}")
    if percent and not (found.is_link_local and _ZONE.fullmatch(zone)):
        raise ValueError(f"'[{text}]': only link-local addresses have a zone, as in [fe80::1%eth0]")
    return f"{found}{percent}{zone}"
