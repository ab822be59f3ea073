"""Screens of docs/guides/console.md: a fleet with a draining and an absent worker. UPDATE=1 writes them."""

import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.console.conftest import visit
from tests.console.fleet import console_fleet, play_in_time
from tests.support.patience import patience

pytestmark = pytest.mark.console

DOCS = ROOT / "docs/guides/console"
MAX_BYTES = 120_000
IS_UPDATE = os.environ.get("UPDATE") == "1"
TRAFFIC_S = 120.0 if IS_UPDATE else 4.0
WIDTH = 1360
SCREENS = (
    ("fleet", "Fleet", "light", 560),
    ("traffic", "Traffic", "light", 700),
    ("cache", "Cache", "light", 700),
    ("policies", "Policies", "light", 700),
    ("scaling", "Scaling", "light", 560),
    ("tenants", "Tenants", "dark", 560),
    ("decisions", "Decisions", "dark", 460),
)


def test_screens_of_the_docs(browser: Any, tmp_path: Path) -> None:
    folder = DOCS if IS_UPDATE else tmp_path
    folder.mkdir(exist_ok=True)
    with console_fleet(model="embedder") as fleet:
        play_in_time(fleet.gateway, TRAFFIC_S)
        drain = urllib.request.Request(
            f"{fleet.gateway.admin_url}/admin/workers/{fleet.workers[2]}/drain", b"", method="POST"
        )
        urllib.request.urlopen(drain, timeout=patience(10)).read()
        for name, heading, scheme, height in SCREENS:
            seen = visit(browser, fleet.gateway.admin_url, scheme, WIDTH, height)
            seen.open(name, heading)
            seen.page.locator("tbody tr.row, canvas").first.wait_for()
            seen.page.get_by_text("live", exact=True).wait_for()
            seen.shoot(name if scheme == "light" else f"{name}-{scheme}", folder)
        seen.page.locator("tbody tr.row").nth(4).click()
        seen.page.emulate_media(color_scheme="light")
        seen.page.set_viewport_size({"width": WIDTH, "height": 640})
        seen.page.locator("tr.chosen").wait_for()
        seen.shoot("decision", folder)
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.png")}
    assert len(sizes) == len(SCREENS) + 1 and max(sizes.values()) <= MAX_BYTES, sizes
