"""Log sink: lines are written whole and in order; a slow reader loses lines, which are counted."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.observability.log_sink import LogSink


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for file in (reading, writing):
        os.close(file)


def read_to(file: int, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        data += os.read(file, 1 << 16)
    return data


def test_lines_go_out_in_order(pipe: tuple[int, int]) -> None:
    sink = LogSink(pipe[1])
    for number in range(1000):
        sink.write(b"%d\n" % number)
    assert read_to(pipe[0], b"\n999\n") == b"".join(b"%d\n" % number for number in range(1000))
    sink.close()
    assert sink.num_dropped == 0


def test_a_full_pipe_drops_lines_and_reports_their_number(pipe: tuple[int, int]) -> None:
    sink, line = LogSink(pipe[1], max_queued_bytes=1 << 20), b"x" * 1023 + b"\n"
    for _ in range(3000):  # the pipe takes 64 of them, the queue 1024; there is no reader, and nothing waits
        sink.write(line)
    assert 3000 - 1024 - 192 <= sink.num_dropped <= 3000 - 1024
    data = b""
    while data.count(line) + sink.num_dropped < 3000:
        data += os.read(pipe[0], 1 << 16)
    sink.write(b"last\n")
    data += read_to(pipe[0], b"last\n")
    reported = re.findall(rb"^(\d+) log lines dropped here: the reader was too slow$", data, re.M)
    assert sum(map(int, reported)) == sink.num_dropped


def test_a_file_without_space_is_counted() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        sink = LogSink(writing)
        sink.write(b"one\n")
        sink.close()
        assert sink.num_dropped == 1
    finally:
        os.close(writing)


def test_a_non_blocking_pipe_is_waited_for(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    sink = LogSink(pipe[1])
    sink.write(b"x" * 300_000 + b"\n")
    assert len(read_to(pipe[0], b"\n")) == 300_001
    sink.close()


def test_lines_after_close_are_counted_and_close_does_not_wait_for_a_reader(pipe: tuple[int, int]) -> None:
    sink = LogSink(pipe[1])
    sink.write(b"y" * 200_000)  # more than the pipe takes: the thread is held
    sink.close(timeout_s=0.01)
    sink.write(b"late\n")
    assert sink.num_dropped == 1
    os.read(pipe[0], 1 << 16)
    while sink._num_queued_bytes:
        os.read(pipe[0], 1 << 16)


def test_a_line_is_written_at_once_while_the_pipe_has_room(pipe: tuple[int, int]) -> None:
    sink = LogSink(pipe[1])
    sink.write(b"one\n")
    os.set_blocking(pipe[0], False)
    assert os.read(pipe[0], 100) == b"one\n" and os.get_blocking(pipe[1])


def test_lines_are_appended_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        sink = LogSink(file.fileno())
        sink.write(b"one\n")
        file.write(b"somebody else's\n")
        sink.write(b"x" * 9000 + b"\n")
        sink.close()
    assert path.read_bytes() == b"one\nsomebody else's\n" + b"x" * 9000 + b"\n"
