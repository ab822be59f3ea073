"""Predictions against vLLM's own `KVCacheManager`, with and without the speculation that drops blocks."""

import base64
import json
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from engines.vllm import Vllm
from gateway.core.blocks import root_hash, tokens_of
from gateway.core.decision import Prompt
from gateway.core.fleet import HashGroup
from gateway.core.hit_rule import PLAIN, HitRule
from gateway.core.ledger import Ledger
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.index.sent_media import SentLinks
from gateway.routing.candidates import Lookups
from tests.support.engine_process import ROOT
from tests.vllm.engine import ENGINE

INSIDE = ROOT / "tests" / "vllm" / "inside_kv_manager.py"
BLOCK = 16
W = WorkerId("w:1")


def recorded(seed: int, mode: str) -> list[dict[str, Any]]:
    made = subprocess.run(
        [str(ENGINE.parent / "python"), str(INSIDE), str(seed), mode],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return [json.loads(line) for line in made.stdout.splitlines() if line.startswith("{")]


class Predictor:
    """The index of one worker, filled by the events of a trace."""

    def __init__(self, rule: HitRule) -> None:
        self.group = HashGroup("m", None, BLOCK, hit_rule=rule)
        self.index = MemoryIndex()
        self.index.add_worker(W, root_hash("m"), BLOCK)
        assumed = AssumedIndex()
        assumed.add_worker(W, keep_s=60.0, max_blocks=100)
        self.lookups = Lookups(self.index, assumed, Ledger(), SentLinks(assumed, 60.0))
        self.num_batches = 0

    def predict(self, ids: Sequence[int]) -> int:
        prompt = Prompt((tokens_of(ids),))
        hashes = self.lookups.hash(prompt, self.group, None)
        return self.lookups.hold(prompt, self.group, hashes, 0.0).held_tokens.get(W, 0)

    def apply(self, payload: bytes) -> None:
        if payload:
            batch = Vllm().decode([b"", self.num_batches.to_bytes(8, "big"), payload])
            self.num_batches += 1
            for event in batch.events:
                self.index.apply(W, event)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("mode", "rule"), [("keep", PLAIN), ("drop", HitRule(drops_last=True))])
def test_each_prediction_is_what_the_manager_finds(seed: int, mode: str, rule: HitRule) -> None:
    predictor, differing, num_hits = Predictor(rule), [], 0
    for number, line in enumerate(recorded(seed, mode)):
        predicted = predictor.predict(line["prompt"])
        num_hits += line["cached"] > 0
        if predicted != line["cached"]:
            differing.append((number, len(line["prompt"]), predicted, line["cached"]))
        predictor.apply(base64.b64decode(line["payload"]))
    assert num_hits > 100, "the trace has hits"
    assert differing == []


def test_the_rule_makes_the_difference() -> None:
    plain = Predictor(PLAIN)
    over = 0
    for line in recorded(1, "drop"):
        over += plain.predict(line["prompt"]) - line["cached"] == BLOCK
        plain.apply(base64.b64decode(line["payload"]))
    assert over > 100
