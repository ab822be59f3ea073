"""The console in use: changes, login, restarts, several processes, and fleets of many workers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.key_format import format_key_record
from loadtest.ports import free_port
from tests.console.conftest import visit
from tests.console.fleet import ConsoleFleet, console_fleet
from tests.support.gateway_process import GatewayProcess

pytestmark = pytest.mark.console

KEY = make_key(bytes(6), bytes(range(32))).decode()
KEY_ID = "000000000000"
NUM_MANY = 1000
MAX_ELEMENTS = 3000


@pytest.fixture
def keyed(tmp_path: Path) -> Any:
    path = tmp_path / "keys"
    path.write_text(format_key_record(KEY.encode(), bytes(16), "ops", admin=True) + "\n")
    flags = ("--admin-key-file", str(path), "--admin-auth", "all", "--processes", "2")
    with console_fleet(*flags, is_closed=True) as fleet:
        yield fleet


def test_a_worker_is_drained_taken_back_and_removed_after_a_confirmation(
    browser: Any, fleet: ConsoleFleet
) -> None:
    seen = visit(browser, fleet.gateway.admin_url)
    seen.open("fleet", "Fleet")
    name = fleet.workers[2].removeprefix("http://")
    row = seen.page.locator("tbody tr.row", has_text=name)
    row.click()
    dialog = seen.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Drain…").click()
    dialog.get_by_role("button", name="Cancel").click()
    assert row.get_by_text("active").count() == 1
    dialog.get_by_role("button", name="Drain…").click()
    seen.check_accessible()
    dialog.get_by_role("button", name="Drain", exact=True).click()
    row.get_by_text("draining").wait_for()
    dialog.get_by_role("button", name="Take back…").click()
    dialog.get_by_role("button", name="Take back", exact=True).click()
    row.get_by_text("active").wait_for()
    dialog.get_by_role("button", name="Close").click()
    seen.page.locator("tbody tr.row", has_text=fleet.absent).click()
    seen.page.get_by_role("dialog").get_by_role("button", name="Remove…").click()
    seen.page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    seen.page.get_by_role("heading", name="Recently removed").wait_for()
    assert seen.complaints == []


def test_a_login_opens_the_console_of_several_processes(browser: Any, keyed: ConsoleFleet) -> None:
    seen = visit(browser, keyed.gateway.admin_url)
    seen.open("fleet", "Log in")
    seen.check_accessible()
    seen.shoot("login")
    seen.page.get_by_label("Admin key").fill("kvg-wrong")
    seen.page.get_by_role("button", name="Log in").click()
    seen.page.get_by_role("alert").get_by_text("unknown API key").wait_for()
    seen.page.get_by_label("Admin key").fill(KEY)
    seen.page.get_by_role("button", name="Log in").click()
    seen.page.get_by_role("heading", name="Fleet", level=1).wait_for()
    seen.page.locator("tbody tr.row").first.wait_for()
    seen.page.get_by_text(f"key {KEY_ID}").wait_for()
    (cookie,) = seen.page.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["expires"] == -1
    kept = seen.page.evaluate(
        "JSON.stringify([location.href, {...localStorage}, {...sessionStorage}, document.cookie])"
    )
    assert KEY not in kept and cookie["value"] not in kept
    seen.page.locator("tbody tr.row", has_text=keyed.workers[0].removeprefix("http://")).click()
    seen.page.get_by_role("button", name="Drain…").click()
    seen.page.get_by_role("button", name="Drain", exact=True).click()
    seen.page.get_by_role("button", name="Take back…").wait_for()
    assert re.search(rf"admin API: POST /admin/workers/\S+/drain by key '{KEY_ID}'", keyed.gateway.log())
    seen.page.keyboard.press("Escape")
    seen.page.get_by_role("button", name="Log out").click()
    seen.page.get_by_role("heading", name="Log in").wait_for()
    assert [each for each in seen.complaints if "401" not in each] == []


def test_a_console_left_open_over_a_restart_connects_again(browser: Any, fleet: ConsoleFleet) -> None:
    port, flags = free_port(), ("--worker", fleet.workers[0])
    with GatewayProcess(*flags, "--admin-port", str(port)) as first:
        seen = visit(browser, first.admin_url)
        seen.open("fleet", "Fleet")
        seen.page.get_by_text("live", exact=True).wait_for()
    seen.page.get_by_text("The gateway does not answer. The figures are of").wait_for()
    seen.page.locator("tbody tr.row").first.wait_for()
    seen.shoot("stale")
    with GatewayProcess(*flags, "--admin-port", str(port)):
        seen.page.get_by_text("The gateway does not answer").wait_for(state="detached")
        seen.page.get_by_text("live", exact=True).wait_for()
        seen.page.close()


def test_a_thousand_workers_and_ten_thousand_requests_are_few_elements(
    browser: Any, fleet: ConsoleFleet
) -> None:
    """Rows out of sight are no elements of the page."""
    real = fleet.gateway.admin("/admin/workers")
    one = next(each for each in real["endpoints"] if each["workers"])
    text = json.dumps(one)
    endpoints = [
        json.loads(text.replace(one["workers"][0]["id"], f"10.0.{i // 250}.{i % 250}:8000"))
        for i in range(NUM_MANY)
    ]
    request = fleet.gateway.admin("/admin/requests?limit=1")["requests"][0]
    requests = [request | {"id": f"id-{i}", "at": request["at"] - i} for i in range(10_000)]
    seen = visit(browser, fleet.gateway.admin_url)
    events = (
        f"event: workers\ndata: {json.dumps(real | {'endpoints': endpoints})}\n\nevent: tick\ndata: {{}}\n\n"
    )
    seen.page.route(
        "**/admin/events*", lambda route: route.fulfill(body=events, content_type="text/event-stream")
    )
    seen.page.route("**/admin/requests*", lambda route: route.fulfill(json={"requests": requests}))
    seen.open("fleet", "Fleet")
    seen.page.get_by_text(f"{NUM_MANY:,} of {NUM_MANY:,}").first.wait_for()
    seen.page.locator(".scroll").first.evaluate("(e) => e.scrollTo(0, 1e9)")
    seen.page.get_by_text("10.0.3.99:8000", exact=True).wait_for()
    assert seen.page.evaluate("document.querySelectorAll('*').length") < MAX_ELEMENTS
    seen.open("decisions", "Decisions")
    seen.page.locator("table[aria-rowcount='10001']").wait_for()
    seen.page.locator(".scroll").first.evaluate("(e) => e.scrollTo(0, 1e9)")
    seen.page.locator("tr[aria-rowindex='10001']").wait_for()
    assert seen.page.evaluate("document.querySelectorAll('*').length") < MAX_ELEMENTS
    assert seen.complaints == []
