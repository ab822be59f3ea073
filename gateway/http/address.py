"""An endpoint's base URL, taken apart: http://host:port/base, https://… or unix:/path/of/socket."""

from dataclasses import dataclass

from gateway.http.url import Url, check_base_path, check_characters, shown

UNIX = "unix:"
_PORTS = {"http": 80, "https": 443}
MAX_SOCKET_CHARS = 107
"""Of a Unix socket's path: what the kernel's sockaddr_un has room for."""


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
            name=parts.netloc + prefix,  # with the path: endpoints may share a host by path
            netloc=parts.netloc,
            host=parts.host,
            port=parts.port or _PORTS[parts.scheme],
            prefix=prefix,
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
        raise ValueError(f"'{shown(url)}' has no name whose addresses could be looked up")
    return DNS + address.url


def _unix(url: str) -> Address:
    """The path is taken as it is: nothing in it is decoded."""
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
            f"'{shown(url)}' is over {MAX_SOCKET_CHARS} characters, which is the most for a socket's path"
        )
    known = UNIX + path
    return Address(url=known, name=known, netloc="localhost", host="127.0.0.1", port=0, unix_path=path)
