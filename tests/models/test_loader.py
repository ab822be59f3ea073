"""Each tokenizer is loaded once, and one that cannot be is said with its reason."""

import asyncio
import logging
import shutil
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.app import bundled_tokenizer
from gateway.models.hub import Found, NotFound, Places
from gateway.models.loader import RETRY_S, Shelf, Source, State
from gateway.tokenization.base import Renderer


class FakePlaces:
    """Knows one directory under every name; or says what the test says."""

    def __init__(self, error: NotFound | None = None) -> None:
        self.error = error
        self.asked: list[str] = []

    def find(self, name: str) -> Found:
        self.asked.append(name)
        if self.error:
            raise self.error
        return Found(bundled_tokenizer(), "a test")


def shelf(places: FakePlaces | None = None) -> Shelf:
    def prepare(name: str, renderer: Renderer) -> None:
        prepared.append(name)

    prepared: list[str] = []
    made = Shelf(cast(Places, places or FakePlaces()), prepare)
    cast(Any, made).prepared = prepared
    return made


async def test_it_is_loaded_once_for_all_who_want_it() -> None:
    places = FakePlaces()
    made = shelf(places)
    shelved = made.get(Source("org/name"))
    assert shelved.state is State.SOUGHT
    await asyncio.gather(*(made.have(made.get(Source("org/name"))) for _ in range(5)))
    assert (shelved.state, places.asked) == (State.LOADED, ["org/name"])
    assert cast(Any, made).prepared == ["org/name"]
    told = shelved.describe()
    assert (told["tokenizer"], told["from"], told["why_none"]) == ("loaded", "a test", None)
    assert told["encoder"] == "fastokens"
    assert [each.source.name for each in made] == ["org/name"] and len(made) == 1


async def test_what_is_given_must_be_there_and_what_is_found_need_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = shelf(FakePlaces(NotFound("it is nowhere")))
    with caplog.at_level(logging.INFO):
        for is_given in (True, False):
            await made.have(made.get(Source("x", is_given=is_given)))
    assert [each.state for each in made] == [State.BROKEN, State.ABSENT]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert all("it is nowhere" in message for message in caplog.messages)
    assert made.get(Source("x")).describe()["why_none"] == "it is nowhere; --tokenizer x=DIR names one"


def test_one_that_a_start_fails_by_is_told_by_who_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    made = shelf(FakePlaces(NotFound("it is nowhere")))
    shelved = made.get(Source("x", is_given=True))
    made.read(shelved, is_needed=True)
    assert (shelved.state, shelved.why, caplog.messages) == (State.BROKEN, "it is nowhere", [])


async def test_a_hub_out_of_reach_is_asked_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    places = FakePlaces(NotFound("no route", is_passing=True))
    made = shelf(places)
    shelved = made.get(Source("org/name"))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            await made.have(shelved)
            assert (shelved.state, shelved.is_passing) == (State.ABSENT, True)
        assert len(places.asked) == 1
        shelved.tried_s -= RETRY_S
        await made.have(shelved)
    assert len(places.asked) == 2 and len(caplog.messages) == 1
    places.error = None
    shelved.tried_s -= RETRY_S
    await made.have(shelved)
    assert shelved.state is State.LOADED


async def test_the_configuration_may_want_the_workers_asked() -> None:
    places = FakePlaces()
    made = shelf(places)
    shelved = made.get(Source("org/name", renderer="worker"))
    await made.have(shelved)
    assert (shelved.state, places.asked) == (State.ABSENT, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "No such file"), ("{% if %}", "chat template"), ("{{ raise_exception('no') }}", "no")],
)
async def test_a_template_that_is_given_and_wrong(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "t.jinja"
    if text is not None:
        path.write_text(text)
    made = shelf()
    shelved = made.get(Source("x", template=str(path), is_given=True))
    await made.have(shelved)
    assert shelved.state is State.BROKEN
    assert words in shelved.why


async def test_a_template_in_place_of_the_models_own(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages[0]['content'] }}")
    made = shelf()
    shelved = made.get(Source("x", template=str(tmp_path / "t.jinja")))
    await made.have(shelved)
    assert "25 characters" in repr(shelved.renderer) or "templates" in repr(shelved.renderer)
    assert shelved.state is State.LOADED


@pytest.mark.parametrize("broken", [b"", b"{", b'{"version":"1.0"}', b"\xff\xfe"])
async def test_a_broken_file_breaks_no_more_than_its_model(tmp_path: Path, broken: bytes) -> None:
    shutil.copytree(bundled_tokenizer(), tmp_path / "t")
    (tmp_path / "t" / "tokenizer.json").write_bytes(broken)
    made = Shelf(Places(uses_hub=False), lambda name, renderer: None)
    shelved = made.get(Source(str(tmp_path / "t"), is_given=True))
    made.read(shelved)
    assert shelved.state is State.BROKEN and shelved.renderer is None
    assert "tokenizer.json" in shelved.why


async def test_what_nobody_foresaw_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(FakePlaces):
        def find(self, name: str) -> Found:
            raise ZeroDivisionError("a bug")

    made = shelf(Odd())
    shelved = made.get(Source("x"))
    await made.have(shelved)
    assert shelved.state is State.ABSENT
    assert "ZeroDivisionError" in shelved.why and "a bug" in caplog.text


async def test_who_closes_it_waits_for_what_is_being_read_and_reads_nothing_more() -> None:
    is_reading, may_end = threading.Event(), threading.Event()
    done: list[str] = []

    def prepare(name: str, renderer: Renderer) -> None:
        is_reading.set()
        may_end.wait()
        done.append(name)

    made = Shelf(cast(Places, FakePlaces()), prepare)
    reading = asyncio.gather(made.have(made.get(Source("one"))))
    await asyncio.to_thread(is_reading.wait)
    closing = asyncio.gather(asyncio.to_thread(made.close))
    assert not done
    may_end.set()
    await closing
    assert done == ["one"], "it was waited for"
    await reading
    other = made.get(Source("two"))
    await made.have(other)
    assert (other.state, other.describe()["why_none"], done) == (State.ABSENT, "the gateway stops", ["one"])
