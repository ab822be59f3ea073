"""Render settings: found by name, shared if equal, valid for one day."""

from datetime import datetime, timedelta

from gateway.tokenization.chat_template import Template
from gateway.tokenization.render_settings import (
    MAX_NAMES,
    MAX_SETTINGS,
    MAX_VARIABLES_CHARS,
    STUB_TOOLS,
    RenderSetting,
    RenderSettings,
)

NOW = datetime(2024, 7, 26, 12)
LOOP = Template("{% for m in messages %}{{ '<|im_start|>' + m.role + m.content }}{% endfor %}")
DAILY = Template("{{ strftime_now('%d %b') }}" + LOOP.source)
HOURLY = Template("{{ strftime_now('%H') }}" + LOOP.source)
VARIABLES = {"tools": None, "documents": None}


def settings(template: Template = LOOP) -> RenderSettings:
    return RenderSettings(("<|im_start|>",), {"default": template})


def made(
    of: RenderSettings, template: Template = LOOP, now: datetime = NOW, **variables: object
) -> RenderSetting | None:
    return of.of(template, {**VARIABLES, **variables}, now)


def test_equal_variables_share_a_setting_and_its_proof() -> None:
    known = settings()
    setting = made(known, mode=1)
    assert setting is made(known, mode=1)
    assert setting is not made(known, mode=2) and setting is not made(known, mode=True)
    assert repr(known) == "RenderSettings(3 of 1 templates)"


def test_another_order_of_keys_may_be_another_text() -> None:
    known = settings()
    assert made(known, mode={"a": 1, "b": 2}) is not made(known, mode={"b": 2, "a": 1})


def test_tools_share_a_setting_with_other_tools_but_not_with_none() -> None:
    known = settings()
    setting = made(known, tools=[{"function": {"name": "a"}}])
    assert setting and setting is made(known, tools=[{"function": {"name": "b"}}])
    assert setting.variables["tools"] == STUB_TOOLS
    assert setting is not made(known) and made(known, tools=[]) not in (setting, made(known))


def test_the_setting_of_a_name_is_kept() -> None:
    known = settings()
    setting = made(known)
    assert known.find(b"n", NOW, lambda: setting) is setting
    assert known.find(b"n", NOW, lambda: None) is setting
    assert known.find(b"o", NOW, lambda: None) is None
    assert known.find(b"o", NOW, lambda: setting) is None


def test_another_day_is_another_setting_where_it_is_printed() -> None:
    tomorrow = NOW + timedelta(days=1)
    daily, known = settings(DAILY), settings()
    assert made(daily, DAILY) is made(daily, DAILY, NOW + timedelta(hours=1))
    assert made(daily, DAILY) is not made(daily, DAILY, tomorrow)
    assert made(known) is made(known, LOOP, tomorrow)


def test_a_template_that_prints_the_hour_has_no_setting() -> None:
    assert made(settings(HOURLY), HOURLY) is None


def test_settings_are_few_and_small() -> None:
    known = settings()
    assert made(known, long="x" * MAX_VARIABLES_CHARS) is None
    first = made(known, mode=0)
    assert all(made(known, mode=i) for i in range(MAX_SETTINGS))
    assert made(known, mode=MAX_SETTINGS) is None and made(known, mode=0) is first
    for i in range(MAX_NAMES + 2):
        known.find(b"%d" % i, NOW, lambda: first)
    assert len(known._by_name) <= MAX_NAMES


def test_a_proof_advances_step_by_step() -> None:
    known = settings()
    setting = made(known)
    assert setting and setting.stubs is None and not known.prove(setting)
    num = 1
    while not known.prove(setting):
        num += 1
    assert setting.stubs and 10 < num < 200


def test_a_template_with_costly_probes_has_no_cut_points() -> None:
    """Each step of a proof renders a dozen probes beside requests."""
    costly = Template(LOOP.source + "{% if mode %}{% for i in range(9000) %}{% endfor %}{% endif %}")
    known = settings(costly)
    for mode, has_cuts in ((False, True), (True, False)):
        setting = made(known, costly, mode=mode)
        assert setting is not None
        while not known.prove(setting):
            pass
        assert bool(setting.stubs) is has_cuts


def test_a_stopped_template_has_no_setting() -> None:
    known = settings()
    setting = made(known)
    known.find(b"n", NOW, lambda: setting)
    assert known.stop(LOOP) and not known.stop(LOOP)
    assert made(known) is None
    assert known.find(b"n", NOW, lambda: None) is None


def test_a_template_has_a_tier_and_its_reason() -> None:
    known = settings()
    assert known.tier(LOOP) == (False, "no setting is proved yet")
    setting = made(known)
    assert setting is not None
    while not known.prove(setting):
        assert known.tier(LOOP) == (False, "no setting is proved yet")
    is_incremental, why = known.tier(LOOP)
    assert is_incremental and "proved in 1 settings at the cuts" in why and "turn" in why
    known.stop(LOOP)
    assert known.tier(LOOP) == (False, "a check failed: an assembled prompt differed from the whole")


def test_a_template_without_cut_points_has_a_reason() -> None:
    assert "more of the time than the day" in settings(HOURLY).tier(HOURLY)[1]
    backwards = Template(
        "{% for m in messages | reverse %}{{ '<|im_start|>' + m.role + m.content }}{% endfor %}"
    )
    known = settings(backwards)
    setting = made(known, backwards)
    assert setting is not None
    while not known.prove(setting):
        pass
    assert known.tier(backwards) == (False, "no cut is proved in 1 settings")
