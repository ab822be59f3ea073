"""A gateway process with an operator's policy file, before a simulated fleet."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app import bundled_tokenizer
from loadtest.fleet import GATEWAY, RunningFleet, simulated_fleet
from tests.support.patience import patience, wait_until

pytestmark = pytest.mark.process

DEADLINE_S = patience(30.0)
BY_NAME = """
def choose(query, candidates, rng):
    return sorted(range(len(candidates)), key=lambda i: candidates[i].id)[{place}]
"""
SYSTEM = "You hear a long story, " + "and another part of it follows, " * 60


class PolicyFleet:
    """A fleet behind a gateway with the policy file `path`, which chooses a worker by its name."""

    def __init__(self, fleet: RunningFleet, path: Path) -> None:
        self.fleet, self.path = fleet, path
        self.ids = sorted(url.removeprefix("http://") for url in fleet.worker_urls)

    def admin(self, path: str) -> Any:
        with urllib.request.urlopen(self.fleet.admin_url + path, timeout=patience(10)) as answer:
            return json.load(answer)

    def chat(self, user: str) -> dict[str, Any]:
        return {
            "model": "m",
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}],
            "max_tokens": 2,
        }

    def ask(self, user: str) -> str:
        """The worker that answered a chat with `user` as its message."""
        body = json.dumps(self.chat(user)).encode()
        url, headers = f"{self.fleet.gateway_url}/v1/chat/completions", {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(url, body, headers), timeout=patience(10)
        ) as answer:
            assert answer.status == 200
            worker: str = answer.headers["x-kvgate-worker"]
        return worker

    def explained(self, user: str) -> Any:
        """The decision for that chat as `kvgate explain --json` prints it."""
        path = self.path.with_suffix(".json")
        path.write_text(json.dumps(self.chat(user)))
        command = ["explain", "--json", "--prompt-file", str(path), "--gateway", self.fleet.admin_url]
        done = subprocess.run([*GATEWAY, *command], capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def until(self, is_true: Callable[[], object], what: str) -> None:
        wait_until(is_true, what)

    def reload(self, text: str) -> None:
        self.path.write_text(text)
        os.kill(self.fleet.gateway_pid, signal.SIGHUP)


@pytest.fixture
def policy_fleet(tmp_path: Path) -> Iterator[PolicyFleet]:
    path = tmp_path / "own.py"
    path.write_text(BY_NAME.format(place=-1))
    flags = ("--policy-file", str(path), "--tokenizer", str(bundled_tokenizer()), "--expose-headers")
    with simulated_fleet(3, (), (*flags, "--policy-shadow", "expected_ttft")) as fleet:
        policy_fleet = PolicyFleet(fleet, path)

        def are_exact() -> bool:
            workers = [w for e in policy_fleet.admin("/admin/workers")["endpoints"] for w in e["workers"]]
            return [worker["stream"] for worker in workers] == ["exact"] * 3

        policy_fleet.until(are_exact, "all events are received")
        yield policy_fleet


def test_policy_file_is_reloaded_under_traffic_unless_it_is_broken(policy_fleet: PolicyFleet) -> None:
    assert [policy_fleet.ask("Hello") for _ in range(3)] == [policy_fleet.ids[-1]] * 3
    policy_fleet.reload(BY_NAME.format(place=0))
    policy_fleet.until(lambda: policy_fleet.ask("Hello") == policy_fleet.ids[0], "the other policy decides")
    policy_fleet.reload("def choose(query, candidates, rng):\n    return nothing\n")
    policy_fleet.until(
        lambda: policy_fleet.admin("/admin/policies")["file"]["error"], "the policy is rejected"
    )
    view = policy_fleet.admin("/admin/policies")
    assert view["file"]["error"] == "policy own: own.py:2: NameError: name 'nothing' is not defined"
    assert (view["policy"], view["fallbacks"]) == ("own", [])
    assert policy_fleet.ask("Hello") == policy_fleet.ids[0]


def test_explain_and_shadow_see_the_cached_prefix(policy_fleet: PolicyFleet) -> None:
    holder = policy_fleet.ask("Begin")
    explained: dict[str, Any] = {}

    def is_cached() -> bool:
        explained.update(policy_fleet.explained("And then?"))
        return {c["worker"]: c["overlap_tokens"] > 100 for c in explained["candidates"]}[holder]

    policy_fleet.until(is_cached, "its blocks are known")
    assert (explained["worker"], explained["policy"], explained["not_tokenized"]) == (holder, "own", None)
    assert sum(c["overlap_tokens"] > 0 for c in explained["candidates"]) == 1
    assert [policy_fleet.ask(f"And then {i}?") for i in range(5)] == [holder] * 5
    policy_fleet.until(
        lambda: policy_fleet.admin("/admin/policies")["shadow"][0]["compared"] == 6, "all are compared"
    )
    (shadow,) = policy_fleet.admin("/admin/policies")["shadow"]
    assert shadow["name"] == "expected_ttft" and shadow["agreed"] >= 5
    assert shadow["shadow_overlap_tokens"] >= shadow["active_overlap_tokens"] > 500
