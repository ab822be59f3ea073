"""Admin requests to a child process, and the report of its end."""

import pytest

from gateway.processes.admin import AdminRequest
from gateway.processes.child_handle import LONGEST_DELAY_S, Process, how_it_ended, read_reply, restart_delay_s


def test_a_process_that_dies_repeatedly_is_restarted_ever_later() -> None:
    assert [restart_delay_s(num) for num in range(5)] == [0, 0.5, 1, 2, 4]
    assert restart_delay_s(1000) == LONGEST_DELAY_S


def test_an_exit_status_in_words() -> None:
    assert how_it_ended(0) == "exit status 0"
    assert how_it_ended(-9) == "killed by SIGKILL"
    assert how_it_ended(-250) == "killed by signal 250"


def test_an_answer_is_read_whole_or_not_at_all() -> None:
    data = (
        b"HTTP/1.0 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n\r\nabc"
    )
    reply = read_reply(data)
    assert (reply.status, reply.content_type, reply.body) == (404, "text/plain", b"abc")
    for cut in (b"", data[:20], data[:-1]):
        with pytest.raises(ConnectionError):
            read_reply(cut)


async def test_an_ended_process_cannot_be_asked() -> None:
    with pytest.raises(ConnectionError):
        await Process(0).ask(AdminRequest("GET", "/"))
