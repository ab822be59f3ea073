"""Files of `deploy/`: their metrics exist, and each alert has its runbook.

For real Prometheus: `make test-deploy` (test_prometheus.py) checks that alerts fire and queries answer.
"""

import re
import urllib.error
import urllib.request
from typing import Any

import pytest
import yaml

from gateway.processes.metric_reference import SPECS
from loadtest.fleet import SIM_READY, first_match, running
from tests import ROOT
from tests.deploy.scrapes import asked_for, scrape
from tests.support.dashboard import BOARD, DEPLOY, QUERIES
from tests.support.gateway_process import GatewayProcess, clean_environment
from tests.support.patience import patience

RULES = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
TESTS = yaml.safe_load((DEPLOY / "alerts_test.yml").read_text())["tests"]


ANSWERS = ("Meaning", "Impact", "Confirm", "Do", "Over when")
"""Parts of a runbook entry that is read at night."""
OPTIONAL = {
    *("kvgate_redis_up", "kvgate_key_file_reloads_total", "kvgate_key_file_age_seconds"),
    "kvgate_jwks_age_seconds",
}
"""Metrics of parts that the gateway of these tests does without."""


def section_of(text: str, name: str) -> str:
    """Text of the section of an alert; empty without one."""
    return text.partition(f"\n## {name}\n")[2].partition("\n## ")[0].strip()


@pytest.mark.parametrize("name", [rule["alert"] for rule in RULES])
def test_a_runbook_entry_with_parts_has_all_of_them(name: str) -> None:
    section = section_of((ROOT / "docs/operations/alerts.md").read_text(), name)
    assert section and re.findall(r"^- \*\*([^*]+)\.\*\*", section, re.M) in ([], list(ANSWERS))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_fired_by_a_test_and_has_its_line_in_the_runbook(rule: dict[str, Any]) -> None:
    name = rule["alert"]
    asked = [each for test in TESTS for each in test["alert_rule_test"] if each["alertname"] == name]
    assert any(each.get("exp_alerts") for each in asked) and not all(each.get("exp_alerts") for each in asked)
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    text = (DEPLOY.parent / page).read_text()
    assert anchor == name.lower() and len(section_of(text, name)) > 60


@pytest.mark.process
def test_a_running_gateway_exposes_all_metrics_of_alerts_and_board() -> None:
    with running("sim", "--port", "0") as sim:
        worker = first_match(sim, SIM_READY)[0]
        with GatewayProcess("--worker", worker, "--queue-above-in-flight", "64") as gateway:
            exposed = scrape(gateway)
    wanted = asked_for([*QUERIES, *(rule["expr"] for rule in RULES)])
    assert len(wanted) > 25 and wanted - exposed == OPTIONAL
    assert {spec.name for spec in SPECS} >= OPTIONAL


def test_the_board_has_unique_ids_and_a_title_for_each_panel() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)


def test_the_container_runs_as_an_unprivileged_user() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    last = text.rpartition("FROM ")[2]
    assert re.search(r"^USER [1-9]\d+:[1-9]\d+$", last, re.M) and "apt-get" not in last


@pytest.mark.process
def test_the_container_answers_probes_and_scrapers_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gateway runs with the variables that the image sets."""
    text = (DEPLOY / "Containerfile").read_text().rpartition("FROM ")[2]
    found = dict(
        re.findall(r"\b(KVGATE_[A-Z_]+)=(\S+)", "\n".join(re.findall(r"^ENV (?:.*\\\n)*.*", text, re.M)))
    )
    assert found["KVGATE_ADMIN_HOST"] == found["KVGATE_HOST"] == "0.0.0.0"
    monkeypatch.setattr(
        "tests.support.gateway_process.clean_environment", lambda: {**clean_environment(), **found}
    )
    listening = re.compile(r"listening on (http://[^\s\",]+), admin on (http://[^\s\",]+)")
    monkeypatch.setattr("tests.support.gateway_process.LISTENING", listening)
    with GatewayProcess() as gateway:
        for path, status in (("/health", 200), ("/metrics", 200), ("/ready", 503), ("/admin/workers", 403)):
            try:
                with urllib.request.urlopen(gateway.admin_url + path, timeout=patience(10)) as answer:
                    assert answer.status == status
            except urllib.error.HTTPError as exc:
                assert exc.code == status, path


def test_the_unit_notifies_and_reloads() -> None:
    text = (DEPLOY / "kvgate.service").read_text()
    assert "\nType=notify\n" in text and "\nExecReload=/bin/kill -HUP $MAINPID\n" in text
