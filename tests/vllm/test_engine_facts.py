"""Facts about vLLM that the gateway relies on, proved on the real engine through kvgate's adapter.

The worker is shared: each test has prompts of its own, and the last one restarts the engine.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import zmq

from engines import ENGINES
from gateway.core.engine import EngineMetrics, ModelInfo
from gateway.core.kv_events import BlocksCleared, BlocksStored, EventBatch, KvEvent
from tests.vllm.engine import VllmWorker

VLLM = ENGINES["vllm"]
BLOCK = 32
TIMEOUT_S = 20.0

_seeds = count(1)


def new_prompt(num_tokens: int) -> list[int]:
    """Token ids that share no prefix with another prompt of this run."""
    seed = next(_seeds)
    return [100 + (seed * 331 + i * 7) % 8000 for i in range(num_tokens)]


class Listener:
    """A subscriber to one worker, with everything that it received so far."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", worker: VllmWorker) -> None:
        self.worker = worker
        self.batches: list[EventBatch] = []
        self._context = context
        self._sub = context.socket(zmq.SUB)
        self._sub.subscribe(worker.topic.encode())
        self._sub.connect(worker.events_endpoint)

    def receive(self, timeout_s: float = TIMEOUT_S) -> EventBatch | None:
        if not self._sub.poll(int(timeout_s * 1000)):
            return None
        self.batches.append(VLLM.decode(self._sub.recv_multipart()))
        return self.batches[-1]

    def warm_up(self) -> "Listener":
        """A subscription takes effect some time after `connect`: ask until an event comes."""
        while self.receive(timeout_s=0.2) is None:
            self.worker.complete(new_prompt(BLOCK + 1))
        return self

    def stored(self, prompt: list[int], **fields: Any) -> BlocksStored:
        """Complete `prompt` and return its one run of new blocks."""
        self.worker.complete(prompt, **fields)
        batch = self.receive()
        assert batch is not None
        (event,) = batch.events
        assert isinstance(event, BlocksStored)
        return event

    def replay(self, start_seq: int = 0) -> list[EventBatch]:
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.connect(self.worker.replay_endpoint)
            dealer.send_multipart(VLLM.replay_request(start_seq))
            return list(self._answers(dealer))

    def _answers(self, dealer: "zmq.Socket[bytes]") -> Iterator[EventBatch]:
        while True:
            assert dealer.poll(int(TIMEOUT_S * 1000)), "the replay does not end"
            batch = VLLM.decode_replay(dealer.recv_multipart())
            if batch is None:
                return
            yield batch


@pytest.fixture(scope="module")
def listener(vllm_worker: VllmWorker) -> Iterator[Listener]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield Listener(context, vllm_worker).warm_up()
    context.destroy(linger=0)


def cached_tokens(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def metrics(worker: VllmWorker) -> EngineMetrics:
    return VLLM.parse_metrics(worker.get(VLLM.paths.metrics).decode())[0]


# events -----------------------------------------------------------------------------------------


def test_full_blocks_of_prompt_and_output_are_published(listener: Listener) -> None:
    prompt = new_prompt(100)
    answer = listener.worker.complete(prompt, max_tokens=40, return_token_ids=True)
    output: list[int] = answer["choices"][0]["token_ids"]
    first, second = listener.receive(), listener.receive()
    assert first and second and second.seq == first.seq + 1
    (of_prompt,), (of_output,) = first.events, second.events
    assert isinstance(of_prompt, BlocksStored) and isinstance(of_output, BlocksStored)
    assert list(of_prompt.tokens) == prompt[:96]
    assert (of_prompt.parent, of_prompt.block_size, len(of_prompt.engine_hashes)) == (None, BLOCK, 3)
    assert (of_prompt.medium, of_prompt.group_idx, of_prompt.spec_kind) == ("GPU", 0, "full_attention")
    assert list(of_output.tokens) == prompt[96:] + output[:28]
    assert of_output.parent == of_prompt.engine_hashes[-1]
    assert first.dp_rank == 0


def test_replay_returns_the_published_batches(listener: Listener) -> None:
    listener.stored(new_prompt(40))
    replay = listener.replay()
    assert [batch.seq for batch in replay] == list(range(len(replay)))
    assert replay[-len(listener.batches) :] == listener.batches
    assert listener.replay(replay[-1].seq) == replay[-1:]
    assert listener.replay(replay[-1].seq + 1) == []


def test_salt_is_an_extra_key_of_the_first_block_only(listener: Listener) -> None:
    prompt = new_prompt(2 * BLOCK + 1)
    plain = listener.stored(prompt)
    salted = listener.stored(prompt, cache_salt="tenant-a")
    assert plain.extra_keys is None
    assert salted.extra_keys == [["tenant-a"], None]
    assert salted.tokens == plain.tokens
    assert set(salted.engine_hashes).isdisjoint(plain.engine_hashes)


def test_adapter_is_an_extra_key_of_each_block_before_the_salt(listener: Listener) -> None:
    prompt = new_prompt(2 * BLOCK + 1)
    plain = listener.stored(prompt)
    adapted = listener.stored(prompt, model="adapter-a")
    salted = listener.stored(prompt, model="adapter-a", cache_salt="tenant-a")
    assert adapted.extra_keys == [["adapter-a"], ["adapter-a"]]
    assert salted.extra_keys == [["adapter-a", "tenant-a"], ["adapter-a"]]
    assert plain.tokens == adapted.tokens == salted.tokens


@pytest.mark.parametrize("num_tokens", [2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_hit_leaves_at_least_one_token_to_compute(listener: Listener, num_tokens: int) -> None:
    prompt = new_prompt(num_tokens)
    run = listener.stored(prompt)
    assert cached_tokens(listener.worker.complete(prompt)) == (num_tokens - 1) // BLOCK * BLOCK
    if num_tokens == 2 * BLOCK:  # the last block is computed and published once more
        second = listener.receive()
        assert second and second.events == [
            BlocksStored(
                run.engine_hashes[1:],
                run.engine_hashes[0],
                run.tokens[BLOCK:],
                BLOCK,
                spec_kind=run.spec_kind,
            )
        ]


def test_pure_hit_is_announced_only_in_full_report_mode(listener: Listener) -> None:
    prompt = new_prompt(2 * BLOCK + 1)
    run = listener.stored(prompt)
    listener.worker.complete(
        prompt, kv_cache_report_mode="full"
    )  # the field has no effect in the body itself
    listener.worker.complete(prompt)
    assert listener.stored(prompt, vllm_xargs={"kv_cache_report_mode": "full"}) == run


def test_prompt_logprobs_read_no_cache_and_store_the_same_hashes_again(listener: Listener) -> None:
    prompt = new_prompt(2 * BLOCK + 1)
    run = listener.stored(prompt)
    answer = listener.worker.complete(prompt, prompt_logprobs=1)
    second = listener.receive()
    assert cached_tokens(answer) == 0
    assert second and second.events == [run]


def test_reset_is_published_with_the_next_step(listener: Listener) -> None:
    prompt = new_prompt(BLOCK + 1)
    run = listener.stored(prompt)
    listener.worker.post("/reset_prefix_cache")
    answer = listener.worker.complete(prompt)
    batch = listener.receive()
    expected: list[KvEvent] = [BlocksCleared(), run]
    assert batch and batch.events == expected
    assert cached_tokens(answer) == 0


# HTTP -------------------------------------------------------------------------------------------


def test_event_sources_list_the_engines_sockets(vllm_worker: VllmWorker) -> None:
    assert VLLM.paths.event_sources
    (source,) = VLLM.parse_event_sources(vllm_worker.get(VLLM.paths.event_sources))
    assert source.dp_rank == 0
    assert source.endpoint.rstrip("*") == vllm_worker.events_endpoint
    assert source.replay_endpoint == vllm_worker.replay_endpoint
    assert source.topic == vllm_worker.topic


def test_metrics_report_cache_size_and_start_time(vllm_worker: VllmWorker) -> None:
    found = metrics(vllm_worker)
    assert found.block_size == BLOCK
    assert found.num_gpu_blocks and found.kv_cache_size_tokens == found.num_gpu_blocks * BLOCK
    assert found.start_time_s and found.start_time_s > 1.7e9
    assert (found.num_requests_running, found.num_requests_waiting) == (0, 0)


def test_models_and_version_are_parsed(vllm_worker: VllmWorker) -> None:
    model, adapter = VLLM.parse_models(vllm_worker.get(VLLM.paths.models))
    (_, adapter_path), *_ = vllm_worker.options.lora
    assert model == ModelInfo("m", root=str(vllm_worker.model), parent=None, max_model_len=8192)
    assert adapter == ModelInfo("adapter-a", root=str(adapter_path), parent="m", max_model_len=None)
    assert VLLM.paths.version
    assert VLLM.parse_version(vllm_worker.get(VLLM.paths.version)).startswith("0.")


# restart: the last test, since it empties the shared worker's cache------------------------------


def test_restarted_engine_starts_at_sequence_number_0_with_an_empty_cache(listener: Listener) -> None:
    worker = listener.worker
    prompt = new_prompt(2 * BLOCK + 1)
    run = listener.stored(prompt)
    before = metrics(worker).start_time_s
    worker.kill()
    # ZeroMQ reconnects by itself, but repeats the subscription only when the socket is polled
    # after the disconnection: a subscriber that is not polled would miss the first batches.
    assert listener.receive(timeout_s=0.5) is None
    worker.start().wait_ready()
    answer = worker.complete(prompt)
    batch = listener.receive()
    assert batch and (batch.seq, batch.events) == (0, [run])
    assert cached_tokens(answer) == 0
    after = metrics(worker).start_time_s
    assert before and after and after > before


def test_killed_engine_leaves_no_process(start_vllm: Callable[..., VllmWorker]) -> None:
    """An engine killed during its start leaves none either; other tests of this folder rely on it."""
    worker = start_vllm()
    assert worker.living_pids()
    pid = worker.living_pids()[0]
    worker.kill()
    assert worker.living_pids() == []
    assert f"pid={pid}" not in repr(worker)
