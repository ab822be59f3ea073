"""The contract of every engine adapter: whatever the bytes, a value or `DecodeError`."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import ENGINES
from gateway.core.engine import Engine
from gateway.core.events import DecodeError, EventBatch

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
def test_frames_of_any_kind_are_decoded_or_refused(engine: Engine, frames: list[bytes]) -> None:
    assert isinstance(decodes_or_refuses(lambda: engine.decode(frames)), EventBatch | None)
    assert isinstance(decodes_or_refuses(lambda: engine.decode_replay(frames)), EventBatch | None)


@each_engine
@given(st.binary())
def test_bodies_of_any_kind_are_parsed_or_refused(engine: Engine, body: bytes) -> None:
    assert isinstance(decodes_or_refuses(lambda: engine.parse_models(body)), tuple | None)
    assert isinstance(decodes_or_refuses(lambda: engine.parse_event_sources(body)), tuple | None)
    assert isinstance(decodes_or_refuses(lambda: engine.parse_version(body)), str | None)


@each_engine
@given(st.text())
def test_a_page_without_metrics_has_no_ranks(engine: Engine, text: str) -> None:
    assert engine.parse_metrics(text) == {}


@each_engine
def test_an_engine_is_listed_under_its_name(engine: Engine) -> None:
    assert ENGINES[engine.name] is engine


@each_engine
def test_paths_are_absolute(engine: Engine) -> None:
    paths = engine.paths
    for path in (paths.health, paths.metrics, paths.models, paths.version, paths.event_sources):
        assert path is None or path.startswith("/")


@each_engine
def test_a_replay_starts_where_it_is_asked_to(engine: Engine) -> None:
    assert engine.replay_request(7) != engine.replay_request(8)
