import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.decision import Decision
from gateway.core.errors import TooManyRequests
from gateway.core.value import replace
from gateway.decide.replies import decided, in_session, queued, rejected, reported, target_of
from gateway.http.messages import Header
from gateway.proto.kvgate.v1 import decide_pb2 as pb
from tests.support.fakes import decision, worker


def made_of(chosen: Decision, **given: object) -> pb.Decided:
    values = {"fallbacks": [], "expires_s": 60.0, "changed": [], "removed": [], "body": None} | given
    return pb.DecideReply.FromString(decided(chosen, **values)).decided  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "address"), [("10.0.0.1:8000", "10.0.0.1:8000"), ("w", "w:80"), ("[::1]:81", "[::1]:81")]
)
def test_a_target_has_an_address_to_connect_to(name: str, address: str) -> None:
    target = pb.Target.FromString(target_of(worker(name)))
    assert (target.worker, target.address, target.url) == (name, address, f"http://{name}")


@given(
    st.text(max_size=300),
    st.integers(0, 1 << 31),
    st.one_of(st.none(), st.floats(allow_nan=False)),
    st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.binary(max_size=200)), max_size=3),
    st.one_of(st.none(), st.binary(max_size=300)),
)
def test_a_decision_reads_as_it_was_made(
    reason: str, num: int, ttft_s: float | None, headers: list[Header], body: bytes | None
) -> None:
    other, third = worker("b"), worker("c")
    chosen = replace(decision(), num_tokens=num, overlap_tokens=num // 2, reason=reason, ttft_s=ttft_s)
    names = [name for name, _ in headers]
    made = made_of(chosen, fallbacks=[other, third], changed=headers, removed=names, body=body)
    wanted = pb.Decided(
        decision_id=chosen.id,
        target=pb.Target.FromString(target_of(chosen.worker)),
        num_tokens=num,
        overlap_tokens=num // 2,
        overlap_blocks=num // 2 // 16,
        predicted_ttft_s=ttft_s,
        reason=reason,
        fallbacks=[pb.Target.FromString(target_of(each)) for each in (other, third)],
        set_headers=[pb.HttpField(name=name.decode("latin-1"), value=value) for name, value in headers],
        remove_headers=[name.decode("latin-1") for name in names],
        body=body,
        expires_s=60.0,
    )
    assert made == wanted


def test_a_workers_key_is_in_no_reply_and_a_new_path_is() -> None:
    changed = [(b":path", b"/base/v1"), (b"authorization", b"Bearer worker"), (b"x-data-parallel-rank", b"1")]
    made = made_of(replace(decision(), ttft_s=None), changed=changed)
    assert made.path == "/base/v1" and not made.HasField("body") and not made.HasField("predicted_ttft_s")
    assert [(each.name, each.value) for each in made.set_headers] == [("x-data-parallel-rank", b"1")]


def test_a_refusal_has_the_clients_whole_answer() -> None:
    error = TooManyRequests("full", code="queue_full", kind="overloaded", wait_s=2.5)
    made = pb.DecideReply.FromString(rejected(429, [(b"retry-after", b"3")], b"{}", error)).rejected
    assert (made.status, made.code, made.message, made.body) == (429, "queue_full", "full", b"{}")
    assert made.retry_after_s == error.retry_after_s and made.headers[0].value == b"3"
    assert pb.DecideReply.FromString(rejected(200, [], b"{}", None)).rejected.code == ""
    assert pb.DecideReply.FromString(queued(1.5)).queued.retry_after_s == 1.5


@pytest.mark.parametrize("tag", [0, 1, 300, (1 << 64) - 1])
def test_a_reply_in_a_session_has_the_tag_of_its_request(tag: int) -> None:
    late = pb.ReportReply(result=pb.ReportReply.UNKNOWN)
    reply = pb.SessionReply.FromString(in_session(tag, reported(late.result), is_report=True))
    assert reply == pb.SessionReply(tag=tag, report=late)
    reply = pb.SessionReply.FromString(in_session(tag, queued(1.0), is_report=False))
    assert reply.tag == tag and reply.decide.queued.retry_after_s == 1.0


def test_targets_of_ranks_differ() -> None:
    ranks = [replace(worker("w"), dp_rank=rank) for rank in (0, 1)]
    assert [pb.Target.FromString(target_of(each)).dp_rank for each in ranks] == [0, 1]
