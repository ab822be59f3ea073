"""Contract of every engine adapter: any bytes give a value or `DecodeError`."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import ENGINES
from gateway.config import by_key
from gateway.core.engine import Engine, EngineInfo, EngineMarks
from gateway.core.kv_events import DecodeError, EventBatch
from gateway.discovery.engine_detection import Engines
from tests import ROOT
from tests.support.engine_data import engine_data

each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
frames = st.lists(st.binary(max_size=40), max_size=5)


def decodes_or_refuses(decode: Callable[[], object]) -> object:
    try:
        return decode()
    except DecodeError as exc:
        assert str(exc)
        return None


@each_engine
@given(frames)
def test_any_frames_are_decoded_or_rejected(engine: Engine, frames: list[bytes]) -> None:
    assert isinstance(decodes_or_refuses(lambda: engine.decode(frames)), EventBatch | None)
    assert isinstance(decodes_or_refuses(lambda: engine.decode_replay(frames)), EventBatch | None)


@each_engine
@given(st.binary())
def test_any_body_is_parsed_or_rejected(engine: Engine, body: bytes) -> None:
    assert isinstance(decodes_or_refuses(lambda: engine.parse_models(body)), tuple | None)
    assert isinstance(decodes_or_refuses(lambda: engine.parse_event_sources(body)), tuple | None)
    assert isinstance(decodes_or_refuses(lambda: engine.parse_version(body)), str | None)
    assert isinstance(decodes_or_refuses(lambda: engine.parse_info(body)), EngineInfo | None)
    assert isinstance(decodes_or_refuses(lambda: engine.decode_poll(body, 16, 1.0)), list | None)


@each_engine
@given(st.text())
def test_a_page_without_metrics_has_no_ranks(engine: Engine, text: str) -> None:
    assert engine.parse_metrics(text) == {}


@each_engine
def test_an_engine_is_recognized_by_name_without_an_answer(engine: Engine) -> None:
    assert isinstance(engine.parse_info(None), EngineInfo)


def test_marks_distinguish_engines_and_the_last_has_none() -> None:
    marks = [engine.marks for engine in ENGINES.values()]
    assert marks[-1] == EngineMarks()
    assert all((mark.owned_by and mark.metrics) or mark.has_no_owner for mark in marks[:-1])
    assert len(set(marks)) == len(marks)


def test_each_engine_has_its_data_in_one_file() -> None:
    assert engine_data().keys() == ENGINES.keys()
    assert all(data.source for data in engine_data().values())


@each_engine
def test_an_engine_is_recognized_by_its_data(engine: Engine) -> None:
    data, engines = engine_data()[engine.name], Engines(ENGINES)
    has_marks = engine.marks != EngineMarks()
    assert engines.by_models(data.models_body) is (engine if has_marks else None)
    has_page = bool(engine.marks.metrics and data.metrics)
    assert engines.by_metrics(data.page.encode()) is (engine if has_page else None)


@each_engine
def test_models_and_load_of_an_engine_are_read(engine: Engine) -> None:
    data = engine_data()[engine.name]
    assert len(engine.parse_models(data.models_body)) == len(data.models["data"]) > 0
    running = sum(rank.num_requests_running or 0 for rank in engine.parse_metrics(data.page).values())
    assert (running > 0) is bool(data.metrics)


@each_engine
def test_an_engine_is_listed_under_its_name(engine: Engine) -> None:
    assert ENGINES[engine.name] is engine


@each_engine
def test_an_engine_is_named_in_the_help_and_on_its_page(engine: Engine) -> None:
    page = (ROOT / "docs/get-started/other-engines.md").read_text()
    assert f"(`{engine.name}`)" in page
    assert re.search(rf"\b{engine.name}\b", by_key()["engine"].help)


@each_engine
def test_paths_are_absolute(engine: Engine) -> None:
    paths = engine.paths
    optional = (paths.version, paths.event_sources, paths.info, paths.poll)
    for path in (paths.health, paths.metrics, paths.models, *optional):
        assert path is None or path.startswith("/")


@each_engine
def test_a_replay_starts_at_the_requested_number(engine: Engine) -> None:
    assert engine.replay_request(7) != engine.replay_request(8)
