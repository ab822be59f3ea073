"""Files of the console: complete, small, and under a policy that admits nothing else."""

import gzip
import re

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.admin.console.assets import HEADERS, INDEX, assets, show_file, show_index
from tests import ROOT

MAX_PACKED_KB = 80.0


def client() -> TestClient:
    app = web.Application()
    app.add_routes([web.get("/", show_index), web.get("/console/{file}", show_file)])
    return TestClient(TestServer(app))


def test_the_whole_console_is_small() -> None:
    assert sum(len(asset.packed) for asset in assets().values()) / 1000 <= MAX_PACKED_KB
    assert all(gzip.decompress(asset.packed) == asset.plain for asset in assets().values())


def test_the_page_names_existing_files_by_relative_paths_only() -> None:
    """Behind a reverse proxy the console lies below a path that it does not know."""
    texts = {name: asset.plain.decode() for name, asset in assets().items()}
    named = re.findall(r'(?:href|src)="([^"]+)"', texts[INDEX])
    assert {name.removeprefix("console/") for name in named if name != "admin/workers"} <= texts.keys()
    for name, text in texts.items():
        imported = re.findall(r'from "\./([^"]+)"', text)
        assert set(imported) <= texts.keys(), name


def test_no_text_becomes_markup() -> None:
    ours = [path for path in (ROOT / "gateway/admin/console/static").iterdir() if path.suffix == ".js"]
    found = [
        path.name
        for path in ours
        if re.search(r"innerHTML|outerHTML|insertAdjacent|eval\(", path.read_text())
    ]
    assert found == []


def test_nothing_is_stored_in_the_browser() -> None:
    ours = [path for path in (ROOT / "gateway/admin/console/static").iterdir() if path.suffix == ".js"]
    assert [p.name for p in ours if re.search(r"localStorage|sessionStorage|indexedDB", p.read_text())] == []


def test_the_policy_admits_no_inline_code_and_no_other_host() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    page = assets()[INDEX].plain.decode()
    assert not re.search(r"<script(?![^>]*src=)|<style|style=|\son\w+=", page)


def test_our_code_asks_by_relative_paths_only() -> None:
    for path in (ROOT / "gateway/admin/console/static").glob("*.js"):
        found = re.findall(r"[\"'`(]/(?:admin|console|session|login|logout)\b", path.read_text())
        assert found == [], path.name


async def test_files_are_served_compressed_and_once() -> None:
    async with client() as browser:
        answer = await browser.get("/", headers={"Accept-Encoding": "gzip"})
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert answer.headers["Content-Encoding"] == "gzip"
        assert {**HEADERS}.items() <= dict(answer.headers).items()
        again = await browser.get("/", headers={"If-None-Match": answer.headers["ETag"]})
        assert again.status == 304 and again.headers["Content-Security-Policy"]
        plain = await browser.get("/console/app.js", headers={"Accept-Encoding": "identity"})
        assert "Content-Encoding" not in plain.headers and b"render(" in await plain.read()


async def test_other_files_are_404() -> None:
    async with client() as browser:
        for name in ("LICENSE-uplot", "..%2fassets.py", "__init__.py", "nothing.js"):
            assert (await browser.get(f"/console/{name}")).status == 404


def test_each_library_comes_with_its_licence() -> None:
    vendor = ROOT / "gateway/admin/console/vendor"
    licences = {path.name.removeprefix("LICENSE-") for path in vendor.glob("LICENSE-*")}
    assert licences == {"htm", "preact", "uplot"}
