"""Workers with models that bring a hostile chat template: others go on, and the model's workers tokenize.

The models are directories that the workers name as their root. What the operator has not named is tried in a
process that can be killed; what takes too much for a request only is refused from that request on.
"""

import asyncio
from pathlib import Path

import pytest

from loadtest.hostile_templates import HARMLESS, TRAPS, long_chat, model_directory, outcome_of
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import CHAT, completion, post
from tests.support.blackbox.scripted_worker import FakeWorker
from tests.support.patience import until

FLAGS = ("--no-tokenizer-probe", "--probe-interval-s", "100")


async def joined(bench: Bench, folder: Path, template: str) -> FakeWorker:
    """Worker of a model "bad" with this template."""
    root = await asyncio.to_thread(model_directory, folder / "model", template)
    return await bench.worker({"id": "bad", "root": str(root)})


async def others_go_on(bench: Bench) -> None:
    for number in range(5):
        answer = await bench.ask(post(completion(f"good {number}", model="good")))
        assert answer.status == 200
    assert (await bench.gateway.admin("GET", "/health")).status == 200


async def settled(bench: Bench, root: str, *, is_harmless: bool = False) -> str:
    """Why the template is refused, once it is; requests that make it costly go on meanwhile."""
    why = ""

    async def is_settled() -> bool:
        nonlocal why
        assert (await bench.ask(post(long_chat("bad"), target=CHAT))).status == 200
        await others_go_on(bench)
        why = outcome_of((await bench.gateway.admin("GET", "/admin/tokenizer")).json, root, is_harmless)
        return bool(why)

    await until(is_settled, "the template is settled")
    return why


@pytest.mark.parametrize("trap", TRAPS)
async def test_a_hostile_template_costs_others_nothing_and_its_workers_tokenize(
    trap: str, tmp_path: Path
) -> None:
    async with running(*FLAGS) as bench:
        await bench.worker("good")
        worker = await joined(bench, tmp_path, TRAPS[trap])
        why = await settled(bench, str(tmp_path / "model"), is_harmless=trap == HARMLESS)
        await others_go_on(bench)
        if trap == HARMLESS:
            assert why == "fastokens", "nothing is computed while it is compiled"
            return
        assert why.startswith("chat template: it ")
        lines = [
            line for line in bench.gateway.log if "its workers tokenize" in line and str(tmp_path) in line
        ]
        assert len(lines) == 1 and why in lines[0]
        num_asked = sum(call.target == b"/tokenize" for call in worker.probes)
        assert (await bench.ask(post(long_chat("bad", 7), target=CHAT))).status == 200
        assert sum(call.target == b"/tokenize" for call in worker.probes) > num_asked, "its worker tokenizes"
        (name, *_) = (await bench.gateway.admin("GET", "/admin/decisions")).json["decisions"]
        decided = (await bench.gateway.admin("GET", f"/admin/decisions/{name}")).json
        assert (decided["tokenized_by"], decided["prompt_tokens"]) == ("worker", 3)


async def test_a_gateway_stops_while_a_template_is_tried(tmp_path: Path) -> None:
    async with running(*FLAGS) as bench:
        await bench.worker("good")
        await joined(bench, tmp_path, TRAPS["folded constant"] + "{# stopped meanwhile #}")
        assert await bench.gateway.stop() == 0


async def test_a_refused_template_is_refused_at_the_next_worker_without_a_trial(tmp_path: Path) -> None:
    async with running(*FLAGS) as bench:
        await bench.worker("good")
        first = await joined(bench, tmp_path, TRAPS["deep nesting"])
        why = await settled(bench, str(tmp_path / "model"))
        other = tmp_path / "other"
        await asyncio.to_thread(model_directory, other, TRAPS["deep nesting"])
        await bench.worker({"id": "bad2", "root": str(other)})
        again = ""

        async def is_refused() -> bool:
            nonlocal again
            again = outcome_of((await bench.gateway.admin("GET", "/admin/tokenizer")).json, str(other))
            return bool(again)

        await until(is_refused, "it is refused again")
        assert again == why and first.faults == []
