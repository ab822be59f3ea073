import base64
import random
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.core.blocks import hash_blocks, root_hash
from gateway.core.errors import ConfigError
from gateway.observability.recording import Recorded
from gateway.replay.fleet import Setup, VirtualFleet
from gateway.replay.formats.reading import TraceOptions
from gateway.replay.job import ReplayJob
from gateway.replay.play import served_of
from gateway.replay.profile import H100_8B
from gateway.replay.traces import read

SIZE = 16


def row(at: float, prompt: "array[int]", output: int, **fields: Any) -> Recorded:
    blocks = array("Q", hash_blocks(prompt, SIZE, root_hash("m"))).tobytes()
    known = {"blocks": blocks, "block_size": SIZE, "ttft_s": 0.1, "result": "ended", "status": 200}
    received: dict[str, Any] = {
        "output_tokens": output,
        "prompt_tokens": len(prompt),
        "total_s": 1.0,
        **known,
        **fields,
    }
    return Recorded(at=at, model="m", policy="p", worker="w", **received)


def jobs_of(path: Path, rows: list[Recorded], speed: float = 1.0) -> list[ReplayJob]:
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return read(path, TraceOptions(speed)).jobs


def some(num: int, seed: int = 1) -> "array[int]":
    rng = random.Random(seed)
    return array("I", [rng.randrange(9999) for _ in range(num)])


def turns() -> list["array[int]"]:
    """A conversation, then two prompts that only share its beginning."""
    first = some(100)
    second = first + some(60, 2) + some(30, 3)
    return [first, second, first[:64] + some(50, 4), some(40, 5)]


@pytest.mark.parametrize("session", ["s", None])
def test_a_later_turn_has_the_recorded_overlap(tmp_path: Path, session: str | None) -> None:
    """Continuations are found by session, or by the cached tokens that the engine reported."""
    prompts = turns()
    rows = [row(5.0 * i, tokens, 60, session=session) for i, tokens in enumerate(prompts)]
    rows[1] = msgspec.structs.replace(rows[1], reported_cached_tokens=160)
    jobs = jobs_of(tmp_path / "r.jsonl", rows)
    done = VirtualFleet(Setup(1, H100_8B, block_size=SIZE)).run(jobs)
    truth = [ReplayJob(5.0 * i, tokens, 60, output=some(60, 2)) for i, tokens in enumerate(prompts)]
    VirtualFleet(Setup(1, H100_8B, block_size=SIZE)).run(truth)
    assert [job.cached_tokens for job in done] == [job.cached_tokens for job in truth] == [0, 144, 64, 0]
    assert [job.turn for job in done] == [1, 2, 1, 1]


def test_a_common_beginning_alone_is_no_later_turn(tmp_path: Path) -> None:
    """Another session, or an engine with no more tokens cached than the common ones."""
    first, second, *_ = turns()
    for fields in ({"session": "t"}, {"session": None, "reported_cached_tokens": 96}):
        jobs = jobs_of(
            tmp_path / "r.jsonl", [row(0.0, first, 60, session="s"), row(5.0, second, 1, **fields)]
        )
        assert not jobs[0].output and jobs[1].turn == 1


def test_a_request_before_the_end_of_an_answer_does_not_continue_it(tmp_path: Path) -> None:
    first, second, *_ = turns()
    jobs = jobs_of(tmp_path / "r.jsonl", [row(0.0, first, 60, session="s"), row(0.5, second, 1, session="s")])
    assert not jobs[0].output


def test_recorded_tokens_are_kept(tmp_path: Path) -> None:
    first, second, *_ = turns()
    rows = [row(t, p, 60, session="s", tokens=p.tobytes()) for t, p in ((0.0, first), (5.0, second))]
    one, two = jobs_of(tmp_path / "r.jsonl", rows, speed=2.0)
    assert (one.tokens(), two.tokens(), two.at) == (first, second, 2.5)
    assert list(one.output) == list(some(60, 2))


def test_failed_requests_are_skipped_and_unknown_prompts_share_nothing(tmp_path: Path) -> None:
    tokens = some(100)
    rows = [
        row(0.0, tokens, 5),
        row(1.0, tokens, 5, result="aborted"),
        row(2.0, tokens, 5, status=500),
        row(3.0, tokens, 5, prompt_tokens=0),
        row(4.0, tokens, 5, blocks=b"", block_size=0),
        row(5.0, tokens, None, total_s=0.1 + 10 * 0.225),  # type: ignore[arg-type]
    ]
    jobs = jobs_of(tmp_path / "r.jsonl", rows)
    assert [job.at for job in jobs] == [0.0, 4.0, 5.0]
    assert jobs[1].num_tokens == 100 and jobs[1].tokens()[:16] != jobs[0].tokens()[:16]
    assert jobs[2].num_output == 10  # the length of other answers that took as long


def test_names_with_the_same_blocks_are_one_model_and_adapters_share_nothing(tmp_path: Path) -> None:
    """Each worker serves what it answered for; the adapter's blocks have hashes of their own."""
    tokens = some(100)
    adapted = array("Q", hash_blocks(tokens, SIZE, root_hash("m"), [("lora",)] * 6)).tobytes()
    names = [("base", "w"), ("alias", "w"), ("lora", "v"), ("lora", "v")]
    rows = [row(5.0 * i, tokens, 2) for i in range(4)]
    rows = [replace(each, model=m, worker=w) for each, (m, w) in zip(rows, names, strict=True)]
    rows[2:] = [replace(each, blocks=adapted) for each in rows[2:]]
    jobs = jobs_of(tmp_path / "r.jsonl", rows)
    assert [job.model for job in jobs] == ["m", "m", "m1", "m1"]
    served = served_of(jobs, 3)
    assert served == [["m"], ["m1"], ["m"]]
    assert served_of(jobs, 1) == [["m", "m1"]]
    done = VirtualFleet(Setup(3, H100_8B, block_size=SIZE, served=served)).run(jobs)
    assert {job.worker for job in done[2:]} == {"w1"} and "w1" not in {job.worker for job in done[:2]}
    assert [job.cached_tokens for job in done[2:]] == [0, 96]


def test_the_first_requests_are_of_the_first_workers(tmp_path: Path) -> None:
    """A replay of the first requests only has as many workers as those went to."""
    rows = [replace(row(float(i), some(40, i), 3), worker="ba"[i // 2]) for i in range(4)]
    jobs = jobs_of(tmp_path / "r.jsonl", rows)
    assert [job.place for job in jobs] == ["w0", "w0", "w1", "w1"]
    assert served_of(jobs[:2], 3) == [["m"]] * 3


def test_a_line_is_plain_json() -> None:
    line = msgspec.json.decode(msgspec.json.encode(row(1.0, some(40), 3)))
    assert array("Q", base64.b64decode(line["blocks"])) == array(
        "Q", hash_blocks(some(40), SIZE, root_hash("m"))
    )
    assert "session" not in line and "tokens" not in line


@pytest.mark.parametrize(
    "fields",
    [{"at": 1e300}, {"total_s": -1.0}, {"ttft_s": 1e300}, {"prompt_tokens": 1 << 40}, {"output_tokens": -5},
     {"block_size": 1 << 40}, {"cache_blocks": 1 << 62}, {"tokens": b"abc"}],
)  # fmt: skip
def test_rows_beyond_the_limits_are_named(tmp_path: Path, fields: dict[str, Any]) -> None:
    good = row(0.0, some(40), 5)
    with pytest.raises(
        ConfigError, match=r"r\.jsonl:2: a time or a number of tokens is negative or too large"
    ):
        jobs_of(tmp_path / "r.jsonl", [good, msgspec.structs.replace(good, **fields)])


def test_a_row_beyond_the_limits_is_skipped_where_that_is_allowed(tmp_path: Path) -> None:
    rows = [row(0.0, some(40), 5), row(1.0, some(40), -5)]
    (tmp_path / "r.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    found = read(tmp_path / "r.jsonl", TraceOptions(is_strict=False))
    assert (len(found.jobs), found.num_skipped) == (1, 1)
