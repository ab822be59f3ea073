"""Leaks fail the test that left them, and no other: a folder of leaking tests, run by a pytest of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.patience import patience

LEAKING = '''
import socket

import pytest

pytestmark = pytest.mark.process


class Held:
    """Socket in a cycle: nothing but the collector frees it."""

    def __init__(self):
        self.itself, self.socket = self, socket.socket()


@pytest.fixture
def held():
    return Held()


def test_failed():
    held = Held()
    assert not held


def test_failed_without_a_cycle():
    held = socket.socket()
    assert not held


def test_after_failed_ones(): ...


def test_leaks():
    Held()


def test_after_a_leak(): ...


def test_leaks_a_fixture(held): ...


def test_after_a_fixture(): ...


def test_closes(held):
    held.socket.close()


class Faulty:
    def __del__(self):
        raise ValueError("in a finalizer")


def test_faulty_finalizer():
    faulty = Faulty()
    faulty.itself = faulty


def test_last(): ...
'''
UNMARKED = """
def test_leaks_last():
    import socket
    held = [socket.socket()]
    held.append(held)
"""
CONFTEST = """
from tests.support.leaks import LeakCollector

def pytest_configure(config):
    config.pluginmanager.register(LeakCollector())
"""
SETTINGS = """
[pytest]
filterwarnings = error
markers = process: opens sockets
addopts = --import-mode=importlib -p no:asyncio
"""


@pytest.mark.process
def test_leaks_fail_the_test_that_left_them(tmp_path: Path) -> None:
    files = {
        "test_a.py": LEAKING,
        "test_b.py": UNMARKED,
        "test_c.py": "def test_good(): ...",
        "conftest.py": CONFTEST,
    }
    for name, text in {**files, "pytest.ini": SETTINGS}.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-rfE", "-p", "no:cacheprovider", "-p", "no:xdist", "-v", "."]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        timeout=patience(300),
    )
    bad = set(re.findall(r"^(FAILED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE))
    assert bad == {
        ("FAILED", "test_failed"),
        ("FAILED", "test_failed_without_a_cycle"),
        ("ERROR", "test_leaks"),
        ("ERROR", "test_leaks_a_fixture"),
        ("ERROR", "test_faulty_finalizer"),
        ("ERROR", "test_leaks_last"),
    }, done.stdout
    assert "ResourceWarning: unclosed <socket" in done.stdout and "ValueError: in a finalizer" in done.stdout
