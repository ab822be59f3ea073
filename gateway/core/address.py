"""An endpoint's base URL, taken apart: http://host:port/base, https://… or unix:/path/of/socket."""

from dataclasses import dataclass
from urllib.parse import urlsplit

UNIX = "unix:"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """`url` is the form that is kept, `name` the one that people read. `netloc` is for the Host header,
    `prefix` goes before each path. `unix_path` is set where a socket's file takes the place of host and
    port; `host` is then where the worker's events are."""

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
        """Raises ValueError that says what is wrong with it."""
        if url[: len(UNIX)].lower() == UNIX:
            return _unix(url)
        try:
            parts = urlsplit(url.rstrip("/"))
            port = parts.port  # raises for what is no port
        except ValueError as exc:
            raise ValueError(f"'{url}': {exc}") from exc
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"'{url}' is not an http(s) URL such as http://10.0.0.1:8000, nor unix:/path")
        if parts.query or parts.fragment or parts.username or parts.password:
            raise ValueError(f"'{url}' must be a base URL without query, fragment or credentials")
        netloc = parts.netloc.lower()
        return cls(
            url=f"{parts.scheme}://{netloc}{parts.path}",
            name=netloc + parts.path,  # with the path: endpoints may share a host by path
            netloc=netloc,
            host=parts.hostname,
            port=port or _PORTS[parts.scheme],
            prefix=parts.path,
            is_tls=parts.scheme == "https",
        )


DNS = "dns+"
"""Before the URL of a name whose addresses are a worker each."""


def worker_url(url: str) -> str:
    """A worker's URL, or that of a name, as it is kept. Raises ValueError that says what is wrong with it."""
    if url[: len(DNS)].lower() != DNS:
        return Address.of(url).url
    address = Address.of(url[len(DNS) :])
    if address.unix_path is not None:
        raise ValueError(f"'{url}' has no name whose addresses could be asked for")
    return DNS + address.url


def _unix(url: str) -> Address:
    path = url[len(UNIX) :]
    path = path[2:] if path.startswith("///") else path
    if not path.startswith("/") or path.startswith("//") or path.endswith("/"):
        raise ValueError(f"'{url}' is not the absolute path of a socket such as unix:/run/vllm.sock")
    known = UNIX + path
    return Address(url=known, name=known, netloc="localhost", host="127.0.0.1", port=0, unix_path=path)
