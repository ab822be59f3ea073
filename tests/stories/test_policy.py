"""A simulated fleet, a gateway process and an operator with a policy of his own."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app import bundled_tokenizer
from loadtest.fleet import GATEWAY, RunningFleet, simulated_fleet

pytestmark = pytest.mark.process

DEADLINE_S = 30.0
BY_NAME = """
def choose(query, candidates, rng):
    return sorted(range(len(candidates)), key=lambda i: candidates[i].id)[{place}]
"""
SYSTEM = "You are told a long story, " + "and another part of it follows, " * 60


class Operated:
    """`path` is the policy file of the gateway, which has the last worker by name chosen."""

    def __init__(self, fleet: RunningFleet, path: Path) -> None:
        self.fleet, self.path = fleet, path
        self.ids = sorted(url.removeprefix("http://") for url in fleet.worker_urls)

    def admin(self, path: str) -> Any:
        with urllib.request.urlopen(self.fleet.admin_url + path, timeout=10) as answer:
            return json.load(answer)

    def chat(self, user: str) -> dict[str, Any]:
        return {
            "model": "m",
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}],
            "max_tokens": 2,
        }

    def ask(self, user: str) -> str:
        """Which worker answered."""
        body = json.dumps(self.chat(user)).encode()
        url, headers = f"{self.fleet.gateway_url}/v1/chat/completions", {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as answer:
            assert answer.status == 200
            worker: str = answer.headers["x-kvgate-worker"]
        return worker

    def explained(self, user: str) -> Any:
        """As `kvgate explain --json` prints it."""
        path = self.path.with_suffix(".json")
        path.write_text(json.dumps(self.chat(user)))
        told = ["explain", "--json", "--prompt-file", str(path), "--gateway", self.fleet.admin_url]
        done = subprocess.run([*GATEWAY, *told], capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def until(self, is_true: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_true():
            assert time.monotonic() < deadline, f"never happened: {what}"
            time.sleep(0.02)

    def read_anew(self, text: str) -> None:
        self.path.write_text(text)
        os.kill(self.fleet.gateway_pid, signal.SIGHUP)


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[Operated]:
    path = tmp_path / "own.py"
    path.write_text(BY_NAME.format(place=-1))
    flags = ("--policy-file", str(path), "--tokenizer", str(bundled_tokenizer()), "--expose-headers")
    with simulated_fleet(3, (), (*flags, "--policy-shadow", "expected_ttft")) as fleet:
        operated = Operated(fleet, path)

        def is_heard() -> bool:
            workers = [w for e in operated.admin("/admin/workers")["endpoints"] for w in e["workers"]]
            return [worker["stream"] for worker in workers] == ["exact"] * 3

        operated.until(is_heard, "all events are heard")
        yield operated


def test_a_policy_is_changed_under_traffic_and_a_broken_one_changes_nothing(operated: Operated) -> None:
    assert [operated.ask("Hello") for _ in range(3)] == [operated.ids[-1]] * 3
    operated.read_anew(BY_NAME.format(place=0))
    operated.until(lambda: operated.ask("Hello") == operated.ids[0], "the other policy chooses")
    operated.read_anew("def choose(query, candidates, rng):\n    return nothing\n")
    operated.until(lambda: operated.admin("/admin/policies")["file"]["refused"], "it is refused")
    told = operated.admin("/admin/policies")
    assert told["file"]["refused"] == "policy own: own.py:2: NameError: name 'nothing' is not defined"
    assert (told["policy"], told["fallbacks"]) == ("own", [])
    assert operated.ask("Hello") == operated.ids[0]


def test_what_is_held_is_explained_and_seen_by_a_shadow(operated: Operated) -> None:
    holder = operated.ask("Begin")
    explained: dict[str, Any] = {}

    def is_held() -> bool:
        explained.update(operated.explained("And then?"))
        return {c["worker"]: c["overlap_tokens"] > 100 for c in explained["candidates"]}[holder]

    operated.until(is_held, "its blocks are known")
    assert (explained["worker"], explained["policy"], explained["not_tokenized"]) == (holder, "own", None)
    assert sum(c["overlap_tokens"] > 0 for c in explained["candidates"]) == 1
    assert [operated.ask(f"And then {i}?") for i in range(5)] == [holder] * 5
    operated.until(
        lambda: operated.admin("/admin/policies")["shadow"][0]["compared"] == 6, "all are compared"
    )
    (shadow,) = operated.admin("/admin/policies")["shadow"]
    assert shadow["name"] == "expected_ttft" and shadow["agreed"] >= 5
    assert shadow["shadow_overlap_tokens"] >= shadow["active_overlap_tokens"] > 500
