"""Cache loss at a real vLLM: causes and new text add up to its own `prompt_tokens_by_source`."""

import random
import re
from pathlib import Path
from typing import Any

from tests.support.engine_process import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.vllm.chats import chat, settle, text
from tests.vllm.engine import VllmWorker

COMPUTED = re.compile(r'vllm:prompt_tokens_by_source_total{[^}]*source="local_compute"} (\S+)')


def computed(worker: VllmWorker) -> int:
    """Prompt tokens that the engine computed, by its own metric."""
    return int(sum(map(float, COMPUTED.findall(worker.get("/metrics").decode()))))


def losses(gateway: GatewayProcess) -> dict[str, int]:
    """Tokens by cause, with those of new text; together they are all computed tokens."""
    report: dict[str, Any] = gateway.admin("/admin/cache-loss")
    causes = {cause["id"]: cause["recomputed_tokens"] for cause in report["causes"]}
    assert report["unattributed_tokens"] == 0
    assert sum(causes.values()) + report["new_tokens"] == report["computed_tokens"]
    return causes | {"new": report["new_tokens"], "computed": report["computed_tokens"]}


def ask(gateway: GatewayProcess, system: str, user: str = "Now?", **more: Any) -> None:
    chat(gateway, [{"role": "system", "content": system}, {"role": "user", "content": user}], extra_body=more)


def test_causes_of_cache_loss_add_up_to_the_engines_computed_tokens(
    vllm_small: VllmWorker, vllm_model: Path
) -> None:
    before = computed(vllm_small)
    flags = "--worker", vllm_small.url, "--tokenizer", str(vllm_model), "--expose-headers"
    with GatewayProcess(*flags) as gateway:
        wait_until(lambda: gateway.streams() == ["exact"], 20)
        for minute in (10, 27, 43):  # a system prompt with the time in it
            ask(gateway, f"{text('head', 60)} Now it is 09:{minute}:00. {text('rest', 150)}")
            settle(gateway)
        ask(gateway, text("salted", 150))
        settle(gateway)
        ask(gateway, text("salted", 150), cache_salt="s")
        for seed in range(8):  # more than the cache has room for
            ask(gateway, text(f"system {seed}", 150))
        settle(gateway)
        rng = random.Random(1)
        for _ in range(12):
            ask(gateway, text(f"system {rng.randrange(8)}", 150), text(f"{rng.random()}", 20))
        settle(gateway)
        wait_until(lambda: losses(gateway)["computed"] == computed(vllm_small) - before, 20)
        by_cause = losses(gateway)
        assert all(by_cause[cause] > 100 for cause in ("evicted", "broken_prefix", "other_salt"))
        (broken,) = [
            w["prefix_break"] for w in gateway.admin("/admin/cache-loss")["largest"] if "prefix_break" in w
        ]
        assert (broken["message"], broken["role"], broken["kind"]) == (0, "system", "date or time")
