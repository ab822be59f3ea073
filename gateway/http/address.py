"""Parsing of an endpoint's base URL: http://host:port/base, https://… or unix:/path/of/socket."""

from dataclasses import dataclass

from gateway.http.kubernetes_url import KUBERNETES, KubernetesUrl
from gateway.http.url import Url, check_base_path, check_characters, shown

UNIX = "unix:"
_PORTS = {"http": 80, "https": 443}
MAX_SOCKET_CHARS = 107
"""Characters of a Unix socket's path: the size of the kernel's sockaddr_un."""


@dataclass(frozen=True, slots=True)
class Address:
    """Parsed base URL of an endpoint.

    `url` is the normalized form, `name` the one for people. `netloc` is for the Host header, `prefix` goes
    before each path. `unix_path` replaces host and port for a Unix socket; `host` is then where the worker's
    events are.
    """

    url: str
    name: str
    netloc: str
    host: str
    port: int
    prefix: str = ""
    is_tls: bool = False
    unix_path: str | None = None

    @classmethod
    def of(cls, url: str) -> "Address":
        """Parse a URL. Raises ValueError with the reason."""
        if url[: len(UNIX)].lower() == UNIX:
            return _unix(url)
        check_characters(url)
        if not url.lower().startswith(("http://", "https://")):
            raise ValueError(
                f"'{shown(url)}' is not an http(s) URL such as http://10.0.0.1:8000, nor unix:/path"
            )
        if "?" in url or "#" in url or "@" in url.partition("//")[2].partition("/")[0]:
            raise ValueError(f"'{shown(url)}' must be a base URL without query, fragment or credentials")
        parts = Url.of(url)
        prefix = parts.path.rstrip("/")
        try:
            check_base_path(prefix)
        except ValueError as exc:
            raise ValueError(f"'{shown(url)}': {exc}") from exc
        return cls(
            url=f"{parts.scheme}://{parts.netloc}{prefix}",
            name=parts.netloc + prefix,  # with the path: endpoints may share a host
            netloc=parts.netloc,
            host=parts.host,
            port=parts.port or _PORTS[parts.scheme],
            prefix=prefix,
            is_tls=parts.scheme == "https",
        )


DNS = "dns+"
"""Prefix of a URL with a DNS name of which each address is a worker."""


def names_several(url: str) -> bool:
    """Return True for a URL, in its normal form, that stands for workers to be looked up."""
    return url.startswith((DNS, KUBERNETES))


def worker_url(url: str) -> str:
    """Normalize a worker's URL, or one that stands for several. Raises ValueError with the reason."""
    if url[: len(KUBERNETES)].lower() == KUBERNETES:
        return KubernetesUrl.of(url).url
    if url[: len(DNS)].lower() != DNS:
        return Address.of(url).url
    address = Address.of(url[len(DNS) :])
    if address.unix_path is not None:
        raise ValueError(f"'{shown(url)}' has no DNS name to resolve")
    return DNS + address.url


def _unix(url: str) -> Address:
    """Parse a Unix socket's URL; nothing in its path is decoded."""
    check_characters(url)
    path = url[len(UNIX) :]
    path = path[2:] if path.startswith("///") else path
    if (
        not path.startswith("/")
        or path.endswith("/")
        or any(each in ("", ".", "..") for each in path.split("/")[1:])
    ):
        raise ValueError(
            f"'{shown(url)}' is not the absolute path of a socket such as unix:/run/vllm.sock "
            "(without '.', '..' or '//')"
        )
    if any(character in path for character in "%?#"):
        raise ValueError(
            f"'{shown(url)}' has a '%', '?' or '#', which is not decoded in a socket's path; leave it out"
        )
    if len(path) > MAX_SOCKET_CHARS:
        raise ValueError(
            f"'{shown(url)}' is over {MAX_SOCKET_CHARS} characters, the limit for the path of a socket"
        )
    known = UNIX + path
    return Address(url=known, name=known, netloc="localhost", host="127.0.0.1", port=0, unix_path=path)
