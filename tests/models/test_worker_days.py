"""Days of workers are asked when they join and at each midnight of some zone, and prompts have them."""

import logging
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest

from gateway.app import bundled_tokenizer
from gateway.core.token_runs import TokenRunCache
from gateway.models.loader import LoadState, TokenizerEntry, TokenizerSource
from gateway.models.model_entry import ModelEntry
from gateway.models.worker_days import WorkerDays
from gateway.parity.prober import day_of
from gateway.parity.worker_day import days_at
from gateway.tokenization.prompt_encoder import PromptEncoder

DATED = "{{ strftime_now('%d %b %Y') }}<|im_start|>{{ messages[0].content }}"
SILENT = "<|im_start|>{{ messages[0].content }}"
WITH_TOOLS = "{% if tools %}{{ strftime_now('%d %b') }}{% endif %}" + SILENT


def entry(template: str = DATED) -> ModelEntry:
    renderer = PromptEncoder.load(bundled_tokenizer(), template)
    renderer.remember(TokenRunCache(), datetime(2024, 1, 1), print)
    tokenizer = TokenizerEntry(TokenizerSource("m"), LoadState.LOADED, renderer)
    return ModelEntry("m", tokenizer)


class Zones:
    """Workers with clocks of their own, and the time in UTC."""

    def __init__(self, **hours: float) -> None:
        self.now = datetime(2026, 3, 10, 12, tzinfo=UTC)
        self.offsets = {url: timedelta(hours=each) for url, each in hours.items()}
        self.asked: list[str] = []

    async def day_of(self, entry: ModelEntry, url: str, name: str, days: Sequence[date]) -> date | None:
        self.asked.append(url)
        day = (self.now + self.offsets[url]).date()
        return day if day in days else None


def own_offset(now: datetime) -> timedelta:
    return now.astimezone().utcoffset() or timedelta()


async def test_model_follows_its_workers_and_others_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    zones, model = Zones(a=9, b=9, c=-8), entry()
    days = WorkerDays(zones.day_of, is_fixed=False, clock=lambda: zones.now)
    names = dict.fromkeys("abc", "m")
    changed: list[ModelEntry] = []
    with caplog.at_level(logging.INFO):
        for hour in (0, 3, 6, 15, 20, 24, 30, 31, 32):
            zones.now = datetime(2026, 3, 10, 0, 0, 2, tzinfo=UTC) + timedelta(hours=hour)
            await days.check([(model, names)], changed.append)
            here = own_offset(zones.now) if model.day.offset is None else model.day.offset
            assert (zones.now + here).date() == (zones.now + timedelta(hours=9)).date(), hour
            apart = (zones.now - timedelta(hours=8)).date() != (zones.now + timedelta(hours=9)).date()
            assert list(model.day.others) == ["c"] * apart
    assert set(changed) == {model} and "date in prompts of m: in time zone UTC" in caplog.text
    days.left(model, "a")
    assert "asked" in repr(days)


async def test_only_models_that_print_the_day_are_asked_and_none_where_it_is_configured() -> None:
    zones = Zones(a=14)
    days = WorkerDays(zones.day_of, is_fixed=False, clock=lambda: zones.now)
    assert not await days.learn(entry(SILENT), "a", "m") and zones.asked == []
    fixed = WorkerDays(zones.day_of, is_fixed=True, clock=lambda: zones.now)
    assert not await fixed.learn(entry(), "a", "m") and zones.asked == []


async def test_answer_from_before_a_midnight_is_not_used() -> None:
    zones, model = Zones(a=0), entry()

    async def slow(entry: ModelEntry, url: str, name: str, days: Sequence[date]) -> date | None:
        zones.now += timedelta(minutes=20)
        return days[0]

    zones.now = datetime(2026, 3, 10, 23, 50, tzinfo=UTC)
    days = WorkerDays(slow, is_fixed=False, clock=lambda: zones.now)
    assert not await days.learn(model, "a", "m") and model.day.offset is None


@pytest.mark.parametrize("template", [DATED, WITH_TOOLS])
@pytest.mark.parametrize("hours", [-12, 0, 14])
async def test_day_is_read_off_the_workers_tokens(template: str, hours: int) -> None:
    now = datetime(2026, 3, 10, 11, tzinfo=UTC)
    there = now.astimezone(timezone(timedelta(hours=hours))).replace(tzinfo=None)
    worker, renderer = PromptEncoder.load(bundled_tokenizer(), template), entry(template).tokenizer.renderer
    assert renderer is not None and renderer.prints_day

    async def ask(path: str, body: object) -> bytes:
        assert path == "/tokenize" and isinstance(body, dict)
        return b'{"tokens":%b}' % str(worker.chat(body, there).tolist()).encode()

    assert await day_of("m", ask, renderer.shows_day, days_at(now)) == there.date()


async def test_no_day_is_read_off_a_template_that_prints_none(tmp_path: Path) -> None:
    worker = PromptEncoder.load(bundled_tokenizer(), SILENT)
    assert not worker.prints_day

    async def ask(path: str, body: object) -> bytes | None:
        assert isinstance(body, dict)
        return b'{"tokens":%b}' % str(worker.chat(body, datetime(2026, 3, 10)).tolist()).encode()

    assert await day_of("m", ask, worker.shows_day, days_at(datetime(2026, 3, 10, 11, tzinfo=UTC))) is None


def test_day_of_rejected_chats_is_not_known() -> None:
    refusing = PromptEncoder.load(bundled_tokenizer(), "{{ tools[0].function.name }}{{ strftime_now('%d') }}")
    assert not refusing.shows_day({"messages": [{"role": "user", "content": "x"}]}, [1], date(2026, 3, 10))
