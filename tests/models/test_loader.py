"""Each tokenizer is loaded once, and a failure has its reason."""

import asyncio
import logging
import shutil
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.app import bundled_tokenizer
from gateway.models.hub import Hub, TokenizerLocation, TokenizerNotFound
from gateway.models.loader import RETRY_S, Loader, LoadState, TokenizerSource
from gateway.models.template_trials import TemplateTrials
from gateway.tokenization.base import Renderer


class FakeHub:
    """Hub that finds one directory under every name, or raises an error."""

    def __init__(self, error: TokenizerNotFound | None = None) -> None:
        self.error = error
        self.asked: list[str] = []

    def find(self, name: str) -> TokenizerLocation:
        self.asked.append(name)
        if self.error:
            raise self.error
        return TokenizerLocation(bundled_tokenizer(), "a test")


def loader(hub: FakeHub | None = None) -> Loader:
    def prepare(name: str, renderer: Renderer) -> None:
        prepared.append(name)

    prepared: list[str] = []
    made = Loader(cast(Hub, hub or FakeHub()), prepare)
    cast(Any, made).prepared = prepared
    return made


async def test_a_tokenizer_is_loaded_once_for_all_users() -> None:
    hub = FakeHub()
    made = loader(hub)
    tokenizer = made.get(TokenizerSource("org/name"))
    assert tokenizer.state is LoadState.SEARCHING
    await asyncio.gather(*(made.have(made.get(TokenizerSource("org/name"))) for _ in range(5)))
    assert (tokenizer.state, hub.asked) == (LoadState.LOADED, ["org/name"])
    assert cast(Any, made).prepared == ["org/name"]
    status = tokenizer.describe()
    assert (status["tokenizer"], status["from"], status["tokenizer_reason"]) == ("loaded", "a test", None)
    assert status["encoder"] == "fastokens"
    assert [each.source.name for each in made] == ["org/name"] and len(made) == 1


async def test_a_given_tokenizer_must_exist_and_a_found_one_need_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = loader(FakeHub(TokenizerNotFound("it is nowhere")))
    with caplog.at_level(logging.INFO):
        for is_given in (True, False):
            await made.have(made.get(TokenizerSource("x", is_given=is_given)))
    assert [each.state for each in made] == [LoadState.BROKEN, LoadState.ABSENT]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert all("it is nowhere" in message for message in caplog.messages)
    assert (
        made.get(TokenizerSource("x")).describe()["tokenizer_reason"]
        == "it is nowhere; --tokenizer x=DIR names one"
    )


def test_a_tokenizer_that_ends_a_start_is_not_logged_here(caplog: pytest.LogCaptureFixture) -> None:
    made = loader(FakeHub(TokenizerNotFound("it is nowhere")))
    tokenizer = made.get(TokenizerSource("x", is_given=True))
    made.read(tokenizer, is_needed=True)
    assert (tokenizer.state, tokenizer.why, caplog.messages) == (LoadState.BROKEN, "it is nowhere", [])


async def test_an_unreachable_hub_is_asked_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    hub = FakeHub(TokenizerNotFound("no route", is_passing=True))
    made = loader(hub)
    tokenizer = made.get(TokenizerSource("org/name"))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            await made.have(tokenizer)
            assert (tokenizer.state, tokenizer.is_passing) == (LoadState.ABSENT, True)
        assert len(hub.asked) == 1
        tokenizer.tried_s -= RETRY_S
        await made.have(tokenizer)
    assert len(hub.asked) == 2 and len(caplog.messages) == 1
    hub.error = None
    tokenizer.tried_s -= RETRY_S
    await made.have(tokenizer)
    assert tokenizer.state is LoadState.LOADED


async def test_a_model_configured_for_the_worker_is_not_loaded() -> None:
    hub = FakeHub()
    made = loader(hub)
    tokenizer = made.get(TokenizerSource("org/name", renderer="worker"))
    await made.have(tokenizer)
    assert (tokenizer.state, hub.asked) == (LoadState.ABSENT, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "No such file"), ("{% if %}", "chat template"), ("{{ raise_exception('no') }}", "no")],
)
async def test_a_wrong_given_template_breaks_the_tokenizer(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "t.jinja"
    if text is not None:
        path.write_text(text)
    made = loader()
    tokenizer = made.get(TokenizerSource("x", template=str(path), is_given=True))
    await made.have(tokenizer)
    assert tokenizer.state is LoadState.BROKEN
    assert words in tokenizer.why


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deeply"),
        ("{% include 'x' %}", "include, which is not rendered here"),
        ("{{ 'a' * 10**12 }}", "more time or memory"),
    ],
)
async def test_a_template_that_is_not_rendered_here_leaves_its_model_to_the_workers(
    tmp_path: Path, text: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t.jinja").write_text(text)
    made = loader()
    tokenizer = made.get(TokenizerSource("x", template=str(tmp_path / "t.jinja"), is_given=True))
    with caplog.at_level(logging.INFO):
        await made.have(tokenizer)
    assert tokenizer.state is LoadState.ABSENT and words in tokenizer.why
    (line,) = caplog.messages
    assert words in line and "\n" not in line and caplog.records[0].exc_info is None


async def test_templates_from_outside_are_tried_and_those_of_a_named_directory_are_not(
    tmp_path: Path,
) -> None:
    tried: list[bytes] = []

    def run(source: bytes) -> bytes:
        tried.append(source)
        return b"chat template: refused"

    shutil.copytree(bundled_tokenizer(), tmp_path / "t")
    (tmp_path / "t" / "chat_template.jinja").write_text("{{ messages[0].content }}{# tried #}")
    made = Loader(Hub(uses_hub=False), lambda name, renderer: None, TemplateTrials(run))
    for is_given in (False, True):
        tokenizer = made.get(TokenizerSource(str(tmp_path / "t"), is_given=is_given))
        await made.have(tokenizer)
        assert tokenizer.why == "chat template: refused", "it is remembered"
    assert tried == [b"{{ messages[0].content }}{# tried #}"]
    made = Loader(Hub(uses_hub=False), lambda name, renderer: None, TemplateTrials(run))
    tokenizer = made.get(TokenizerSource(str(tmp_path / "t"), is_given=True))
    await made.have(tokenizer)
    assert (tokenizer.state, len(tried)) == (LoadState.LOADED, 1)


@pytest.mark.parametrize("error", [RecursionError, MemoryError])
async def test_a_file_that_is_too_deep_or_large_has_one_line(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(FakeHub):
        def find(self, name: str) -> TokenizerLocation:
            raise error

    made = loader(Odd())
    await made.have(tokenizer := made.get(TokenizerSource("x")))
    assert error.__name__ in tokenizer.why and caplog.text.count("\n") <= 1


async def test_a_template_replaces_the_models_own(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages[0]['content'] }}")
    made = loader()
    tokenizer = made.get(TokenizerSource("x", template=str(tmp_path / "t.jinja")))
    await made.have(tokenizer)
    assert "25 characters" in repr(tokenizer.renderer) or "templates" in repr(tokenizer.renderer)
    assert tokenizer.state is LoadState.LOADED


@pytest.mark.parametrize("broken", [b"", b"{", b'{"version":"1.0"}', b"\xff\xfe"])
async def test_a_broken_file_affects_its_model_only(tmp_path: Path, broken: bytes) -> None:
    shutil.copytree(bundled_tokenizer(), tmp_path / "t")
    (tmp_path / "t" / "tokenizer.json").write_bytes(broken)
    made = Loader(Hub(uses_hub=False), lambda name, renderer: None)
    tokenizer = made.get(TokenizerSource(str(tmp_path / "t"), is_given=True))
    made.read(tokenizer)
    assert tokenizer.state is LoadState.BROKEN and tokenizer.renderer is None
    assert "tokenizer.json" in tokenizer.why


async def test_an_unexpected_error_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(FakeHub):
        def find(self, name: str) -> TokenizerLocation:
            raise ZeroDivisionError("a bug")

    made = loader(Odd())
    tokenizer = made.get(TokenizerSource("x"))
    await made.have(tokenizer)
    assert tokenizer.state is LoadState.ABSENT
    assert "ZeroDivisionError" in tokenizer.why and "a bug" in caplog.text


async def test_closing_waits_for_a_load_in_progress_and_starts_no_other() -> None:
    is_reading, may_end = threading.Event(), threading.Event()
    done: list[str] = []

    def prepare(name: str, renderer: Renderer) -> None:
        is_reading.set()
        may_end.wait()
        done.append(name)

    made = Loader(cast(Hub, FakeHub()), prepare)
    reading = asyncio.gather(made.have(made.get(TokenizerSource("one"))))
    await asyncio.to_thread(is_reading.wait)
    closing = asyncio.gather(asyncio.to_thread(made.close))
    assert not done
    may_end.set()
    await closing
    assert done == ["one"], "it was waited for"
    await reading
    other = made.get(TokenizerSource("two"))
    await made.have(other)
    assert (other.state, other.describe()["tokenizer_reason"], done) == (
        LoadState.ABSENT,
        "the gateway is shutting down",
        ["one"],
    )
