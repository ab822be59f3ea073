"""Render settings: found by name, shared if equal, valid for one day."""

from datetime import datetime, timedelta

import pytest

from gateway.tokenization.chat_template import Template
from gateway.tokenization.render_settings import (
    CHECK_FAILED,
    MAX_NAMES,
    MAX_SETTINGS,
    MAX_USES,
    MAX_VARIABLES_CHARS,
    MAX_WRONG,
    STUB_TOOLS,
    RenderSetting,
    RenderSettings,
    WrongCuts,
)

NOW = datetime(2024, 7, 26, 12)
LOOP = Template("{% for m in messages %}{{ '<|im_start|>' + m.role + m.content }}{% endfor %}")
DAILY = Template("{{ strftime_now('%d %b') }}" + LOOP.source)
HOURLY = Template("{{ strftime_now('%H') }}" + LOOP.source)
VARIABLES = {"tools": None, "documents": None}


def settings(template: Template = LOOP) -> RenderSettings:
    return RenderSettings(("<|im_start|>",), {"default": template}, WrongCuts())


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
    assert setting.stubs and 5 < num < 200


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
    assert known.tier(LOOP) == (False, CHECK_FAILED)


def proved(template: Template) -> RenderSettings:
    known = settings(template)
    setting = made(known, template)
    assert setting is not None
    while not known.prove(setting):
        pass
    return known


BACKWARDS = "{% for m in messages | reverse %}{{ '<|im_start|>' + m.role + m.content }}{% endfor %}"
THOUGHTS_TOO = """{% for m in messages %}{{ '<|im_start|>' + m.role + m.content }}
{%- if m.reasoning and messages[-1].role == 'tool' %}{{ m.reasoning }}{% endif %}{% endfor %}"""


@pytest.mark.parametrize(
    ("source", "is_incremental", "why"),
    [
        (HOURLY.source, False, "the template prints more of the time than the day ('%H')"),
        ("{{ strftime_now }}", False, "the template uses the clock otherwise"),
        ("{% for m in messages %}{{ m == messages[-1] }}{% endfor %}", False, "compares whole messages"),
        (BACKWARDS, False, "no cut point is proved in 1 settings: a plain conversation at lead: "),
        (LOOP.source.replace("im_start", "other"), False, "no special token stands where a message begins"),
        ("{% for i in range(9900) %}{% endfor %}" + LOOP.source, False, "its proofs take too much"),
        (LOOP.source, True, "proved in 1 settings at the cuts lead, step, step_led, turn, turn_led"),
        (
            THOUGHTS_TOO,
            True,
            "whole where it has reasoning before turn: what follows changes the text before",
        ),
    ],
)
def test_the_reason_that_is_shown_is_the_reason(source: str, is_incremental: bool, why: str) -> None:
    template = Template(source)
    known = settings(template)
    setting = made(known, template)
    while setting is not None and not known.prove(setting):
        pass
    shown, reason = known.tier(template)
    assert shown is is_incremental and why in reason and "check failed" not in reason


@pytest.mark.parametrize(
    "source",
    [
        "{% if strftime_now is defined %}{{ strftime_now('%d') }}{% endif %}" + LOOP.source,
        "{% set known = ['a'] %}{% for t in tools or [] %}{% for k in t.function %}{{ k if k not in known }}"
        "{% endfor %}{% endfor %}" + LOOP.source,
    ],
)
def test_a_template_that_only_looks_as_if_it_did_is_incremental(source: str) -> None:
    template = Template(source)
    assert proved(template).tier(template)[0]


def test_a_wrong_cut_is_remembered_when_the_template_is_loaded_again() -> None:
    wrong = WrongCuts()
    first = RenderSettings(("<|im_start|>",), {"default": LOOP}, wrong)
    beside = RenderSettings(("<|im_start|>",), {"default": Template(LOOP.source)}, wrong)
    assert made(first) is not None
    assert first.stop(LOOP) and not first.stop(LOOP)
    again = Template(LOOP.source)
    later = RenderSettings(("<|im_start|>",), {"default": again, "other": DAILY}, wrong)
    assert later.tier(again) == (False, CHECK_FAILED) and made(later, again) is None
    assert made(later, DAILY) is not None  # another template
    (copy,) = beside._natures
    assert made(beside, copy) is None  # another model's of the same source, that is in use


def test_wrong_cuts_are_few() -> None:
    wrong = WrongCuts()
    templates = [Template(f"{i}") for i in range(3)]
    for i in range(MAX_WRONG):
        wrong._digests[b"%d" % i] = None
    for each in templates:
        wrong.add(each)
    assert len(wrong._digests) == MAX_WRONG and all(each in wrong for each in templates)


def test_the_first_prompts_of_a_kind_are_new() -> None:
    setting = made(settings())
    assert setting is not None
    new = []
    for num in range(1, 20):
        if setting.is_new_use(7):
            new.append(num)
        setting.count_use(7)
    assert new == [1, 2, 4, 8, 16]
    assert setting.is_new_use(8)
    for use in range(MAX_USES + 5):
        setting.count_use(use)
    assert len(setting.uses) <= MAX_USES
