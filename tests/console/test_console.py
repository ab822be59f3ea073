"""Each page of the console shows the fleet, and markup as text; the browser complains about nothing."""

from typing import Any

import pytest

from tests.console.conftest import visit
from tests.console.fleet import MARKUP, NUM_WORKERS, ConsoleFleet

pytestmark = pytest.mark.console

PAGES = {
    "fleet": "Fleet",
    "decisions": "Decisions",
    "traffic": "Traffic",
    "cache": "Cache",
    "tenants": "Tenants",
    "policies": "Policies",
    "scaling": "Scaling",
}
SHOWS_MARKUP = ("fleet", "decisions", "tenants", "scaling")
WIDTHS = {"wide": 1360, "narrow": 420}


def only(rows: Any, text: str) -> Any:
    """The row that is left of several, once the others are gone."""
    row = rows.filter(has_text=text)
    row.wait_for()
    rows.nth(1).wait_for(state="detached")
    return row


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_without_errors(
    browser: Any, fleet: ConsoleFleet, scheme: str, name: str
) -> None:
    for size, width in WIDTHS.items():
        seen = visit(browser, fleet.gateway.admin_url, scheme, width)
        seen.open(name, PAGES[name])
        seen.page.get_by_text("live", exact=True).wait_for()
        seen.page.locator("tbody tr.row, canvas").first.wait_for()
        seen.shoot(f"{name}-{scheme}-{size}")
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        seen.check_accessible()
        assert seen.complaints == []
        seen.page.close()


@pytest.mark.parametrize("name", SHOWS_MARKUP)
def test_markup_in_names_is_shown_as_text(browser: Any, fleet: ConsoleFleet, name: str) -> None:
    seen = visit(browser, fleet.gateway.admin_url)
    seen.open(name, PAGES[name])
    seen.page.get_by_text(MARKUP).first.wait_for()
    assert seen.page.locator("main img").count() == 0
    assert seen.page.title().startswith(PAGES[name])
    assert seen.complaints == []


def test_the_policy_of_the_page_stops_inline_code(browser: Any, fleet: ConsoleFleet) -> None:
    """The browser refuses code that a fault in a page would let in."""
    seen = visit(browser, fleet.gateway.admin_url)
    seen.open("fleet", "Fleet")
    seen.page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'document.title = \"in\"';"
        " document.body.append(s); const i = '<img src=x onerror=\"document.title=1\">';"
        " document.body.insertAdjacentHTML('beforeend', i); }"
    )
    assert seen.page.title().startswith("Fleet")
    assert any("Content Security Policy" in each for each in seen.complaints)


def test_a_row_says_all_of_its_worker(browser: Any, fleet: ConsoleFleet) -> None:
    seen = visit(browser, fleet.gateway.admin_url)
    seen.open("fleet", "Fleet")
    row = seen.page.locator("tbody tr.row", has_text=fleet.workers[0].removeprefix("http://"))
    row.get_by_text("EXACT").wait_for()
    row.get_by_text("active").wait_for()
    seen.page.get_by_text(f"{NUM_WORKERS + 1} of {NUM_WORKERS + 2}").wait_for()
    seen.page.locator("tbody tr.row", has_text=fleet.absent).get_by_text("joining").wait_for()
    row.click()
    seen.page.get_by_role("dialog").get_by_text("Exact predictions lately").wait_for()
    seen.check_accessible()
    seen.page.keyboard.press("Escape")
    seen.page.get_by_role("dialog").wait_for(state="detached")
    assert seen.complaints == []


def test_workers_are_found_by_name_and_state(browser: Any, fleet: ConsoleFleet) -> None:
    seen = visit(browser, fleet.gateway.admin_url)
    seen.open("fleet", "Fleet")
    rows = seen.page.locator("tbody tr.row")
    seen.page.get_by_label("Find workers").fill("onerror")
    only(rows, MARKUP)
    seen.page.get_by_label("Find workers").fill("")
    seen.page.get_by_label("State").select_option("joining")
    only(rows, fleet.absent)


def test_a_decision_opens_to_every_candidate(browser: Any, fleet: ConsoleFleet) -> None:
    seen = visit(browser, fleet.gateway.admin_url)
    seen.open("decisions", "Decisions")
    seen.page.get_by_label("Find a request").fill("'>-20")
    row = only(seen.page.locator("tbody tr.row"), "'>-20")
    row.focus()
    seen.page.keyboard.press("Enter")
    seen.page.get_by_role("heading", name="One decision").wait_for()
    seen.page.get_by_role("heading", name=f"{NUM_WORKERS} candidates").wait_for()
    assert seen.page.locator("tr.chosen").count() == 1
    assert "chosen" in seen.page.locator("tr.chosen").inner_text()
    assert seen.page.locator(".terms").count() == NUM_WORKERS
    assert seen.page.locator(".terms i").count() > NUM_WORKERS
    for scheme in ("light", "dark"):
        seen.page.emulate_media(color_scheme=scheme)
        seen.shoot(f"decision-{scheme}")
        seen.check_accessible()
    assert seen.complaints == []


def test_a_prompt_is_explained_and_not_kept(browser: Any, fleet: ConsoleFleet) -> None:
    seen = visit(browser, fleet.gateway.admin_url)
    seen.open("decisions", "Decisions")
    seen.page.get_by_role("button", name="Explain a prompt").click()
    form = seen.page.locator("form")
    form.get_by_label("Model").select_option("demo")
    form.get_by_label("A user's message").fill("A secret of this test")
    form.get_by_role("button", name="Explain").click()
    seen.page.get_by_role("heading", name=f"{NUM_WORKERS} candidates").wait_for()
    seen.check_accessible()
    assert seen.complaints == []
    for path in ("/admin/requests", "/admin/decisions"):
        assert "secret" not in str(fleet.gateway.admin(path))


def test_a_decision_that_is_gone_is_named(browser: Any, fleet: ConsoleFleet) -> None:
    seen = visit(browser, fleet.gateway.admin_url)
    seen.open("decisions/unknown", "One decision")
    seen.page.get_by_role("alert").get_by_text("no such decision").wait_for()
