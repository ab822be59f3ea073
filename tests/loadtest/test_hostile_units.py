"""Worker with answers of tiny units, as the gateway sees it, and the requests beside an attack."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadtest.bystanders import Bystanders
from loadtest.hostile_body import post
from loadtest.hostile_units import pouring_worker
from loadtest.outpouring import MODEL, UNITS


@contextmanager
def printed(text: str) -> Iterator[Bystanders]:
    code = f"print({text!r}); import sys; sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        clients = Bystanders(process)
        yield clients
        process.terminate()
        clients.join()


def test_the_percentile_is_that_of_the_requests_due_meanwhile() -> None:
    lines = [f"{due} {due * 10}" for due in range(1, 300)]
    with printed("\n".join(lines)) as clients:
        assert clients.p99_ms(101, 200) == 2000
        assert clients.p99_ms(5, 5) == 50
        with pytest.raises(RuntimeError, match="no request was due"):
            clients.p99_ms(5.1, 5.9)


def test_requests_that_fail_are_no_measurement() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE, text=True) as process:
        clients = Bystanders(process)
        process.wait()
        with pytest.raises(RuntimeError, match="failed"):
            clients.p99_ms(0, time.monotonic())
        clients.join()


@pytest.mark.process
@pytest.mark.parametrize("unit", UNITS)
def test_an_answer_consists_of_its_unit(unit: str) -> None:
    with pouring_worker() as url:
        body = f'{{"model":"{MODEL}","prompt":"{unit}","max_tokens":200000}}'.encode()
        assert post(url, "/v1/completions", body)[0] == 200
