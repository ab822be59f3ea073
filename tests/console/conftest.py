"""Chromium for the tests of the console, and what it complains about. Env CHROMIUM names another one."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.console.fleet import ConsoleFleet, console_fleet, play

CACHE = ROOT / ".cache/console"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
AXE = CACHE / "axe.min.js"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # installed by `make test-console` only

    chromium = os.environ.get("CHROMIUM") or str(CACHE / "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def fleet() -> Iterator[ConsoleFleet]:
    with console_fleet() as fleet:
        play(fleet.gateway)
        yield fleet


@dataclass(slots=True)
class Visit:
    """A page of the console, and all that the browser complained about."""

    page: Any
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, name: str, heading: str) -> None:
        self.page.goto(f"{self.url}/#{name}")
        self.page.get_by_role("heading", name=heading, level=1).wait_for()

    def shoot(self, name: str, folder: Path = CACHE) -> Path:
        path = folder / f"{name}.png"
        self.page.screenshot(path=path)
        return path

    def check_accessible(self) -> None:
        """Ask axe-core; the page's own policy admits no foreign script, so this one comes by the debugger."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate(
            "axe.run().then(({violations}) => violations.filter(({impact}) => ['serious', 'critical']"
            ".includes(impact)).map(({id, nodes}) => id + ': ' + nodes.map((n) => n.html).join(' | ')))"
        )
        assert found == []


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def visit(browser: Any, url: str, scheme: str = "light", width: int = 1360, height: int = 860) -> Visit:
    """A fresh window; it is closed with the browser."""
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
    visited = Visit(page, url)
    page.on("pageerror", lambda error: visited.complaints.append(str(error)))
    page.on("console", lambda said: said.type == "error" and visited.complaints.append(said.text))
    return visited
