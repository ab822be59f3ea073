"""Files of the console: read and compressed once, when a browser first asks.

The Content-Security-Policy admits nothing but these files and the admin API beside them: no inline script or
style, no other host, no frame around the page.
"""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from aiohttp import web

INDEX = "index.html"
FOLDERS = ("static", "vendor")
TYPES: Mapping[str, str] = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Asset:
    content_type: str
    plain: bytes
    packed: bytes
    """The same, compressed by gzip."""
    tag: str


@cache
def assets() -> Mapping[str, Asset]:
    """Files by name."""
    return {
        entry.name: _asset(entry.name.rpartition(".")[2], entry.read_bytes())
        for folder in FOLDERS
        for entry in files(__package__).joinpath(folder).iterdir()
        if entry.name.rpartition(".")[2] in TYPES
    }


def _asset(kind: str, content: bytes) -> Asset:
    tag = hashlib.blake2s(content, digest_size=12).hexdigest()
    return Asset(TYPES[kind], content, gzip.compress(content, mtime=0), f'"{tag}"')


async def show_index(request: web.Request) -> web.Response:
    return _answer(request, assets()[INDEX])


async def show_file(request: web.Request) -> web.Response:
    asset = assets().get(request.match_info["file"])
    if asset is None:
        raise web.HTTPNotFound
    return _answer(request, asset)


def _answer(request: web.Request, asset: Asset) -> web.Response:
    headers = {**HEADERS, "ETag": asset.tag, "Vary": "Accept-Encoding"}
    if request.headers.get("If-None-Match") == asset.tag:
        return web.Response(status=304, headers=headers)
    body = asset.plain
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        body, headers["Content-Encoding"] = asset.packed, "gzip"
    return web.Response(body=body, headers=headers, content_type=asset.content_type, charset="utf-8")
