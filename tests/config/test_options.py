"""Declarations of options: names by rule, traits, and what flags, variables and files make of their types."""

import argparse
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from gateway.config import Config, by_key
from gateway.config.flags import add_flags
from gateway.config.options import (
    AT_ONCE,
    CONNECTIONS,
    MAX_SECONDS,
    REQUESTS,
    Option,
    Section,
    option,
    options,
    table,
)
from gateway.config.reading import ConfigErrors, ConfigReader
from gateway.core.errors import ConfigError


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int = 1


class Trip(Section, frozen=True):
    pace: Annotated[Literal["slow", "quick", "late"], option("Pace of it, 100 %.")] = "slow"
    wait_s: Annotated[float, option("Wait between two.", "seconds", gt=0, live=AT_ONCE)] = 1.5
    name: Annotated[list[str], option("Names.", "path", flag="trip")] = msgspec.field(default_factory=list)
    is_loud: Annotated[bool, option("Noise.")] = False
    key: Annotated[str, option("Key of it.", is_rare=True, is_secret=True)] = ""
    share: Annotated[dict[str, float], option("Shares.", "share")] = msgspec.field(default_factory=dict)


class Home(Section, frozen=True):
    door: Annotated[int, option("Door.", is_common=True)] = 1


class Options(Section, frozen=True):
    trip: Annotated[Trip, table("A trip")] = Trip()
    home: Annotated[Home, table("At home", is_plain=True)] = Home()
    parts: Annotated[dict[str, Part], option("Nested.")] = msgspec.field(default_factory=dict)


TRIP: dict[str, Any] = {"pace": "late", "wait_s": 2.0, "name": ["a", "b"], "is_loud": True}


def parsed(*arguments: str) -> Options:
    parser = argparse.ArgumentParser()
    add_flags(parser, Options, has_variables=True)
    reader = ConfigReader(Options)
    reader.flags(vars(parser.parse_args(arguments)))
    return reader.checked()


def of_environment(environ: dict[str, str]) -> Options:
    reader = ConfigReader(Options)
    reader.environment(environ)
    return reader.checked()


def test_names_follow_from_table_and_key() -> None:
    shown = {each.path: each for each in options(Options)}
    assert [each.flag for each in shown.values()] == [
        *("--trip-pace", "--trip-wait-s", "--trip", "--trip-is-loud", "--trip-key", "--trip-share"),
        *("--door", "--parts"),
    ]
    wait = shown["trip.wait_s"]
    assert wait == Option(
        name="wait_s",
        table="trip",
        title="A trip",
        key="trip_wait_s",
        default=1.5,
        unit="seconds",
        help="Wait between two.",
        live=AT_ONCE,
    )
    assert (wait.variable, wait.place) == ("KVGATE_TRIP_WAIT_S", "wait_s in [trip]")
    assert (shown["trip.pace"].choices, shown["trip.pace"].metavar) == (
        ("late", "quick", "slow"),
        "late|quick|slow",
    )
    assert [path for path, each in shown.items() if not each.has_flag] == ["trip.key", "parts"]
    assert shown["home.door"].is_common and shown["trip.key"].is_secret and shown["parts"].is_table


def test_help_has_the_default_with_its_unit() -> None:
    shown = {each.path: each for each in options(Options)}
    assert [shown[f"trip.{name}"].help_with_default for name in ("wait_s", "name", "is_loud")] == [
        "Wait between two. Default: 1.5 seconds.",
        "Names. Default: none.",
        "Noise. Default: false.",
    ]


def test_flags_are_read_as_their_fields_types() -> None:
    assert parsed() == Options()
    flags = ("--trip-pace", "late", "--trip-wait-s", "2", "--trip", "a", "--trip", "b", "--trip-is-loud")
    assert parsed(*flags).trip == Trip(**TRIP)
    assert parsed("--no-trip-is-loud", "--door", "3") == Options(home=Home(door=3))


def test_pairs_are_given_one_by_one_and_tables_only_in_a_file() -> None:
    assert parsed("--trip-share", "a=1", "--trip-share", "b=0.5").trip.share == {"a": 1.0, "b": 0.5}
    assert of_environment({"KVGATE_TRIP_SHARE": "a=1, b=0.5"}).trip.share == {"a": 1.0, "b": 0.5}
    with pytest.raises(SystemExit):
        parsed("--parts", "a")
    with pytest.raises(ConfigError, match="^environment: KVGATE_PARTS: parts goes into a file"):
        of_environment({"KVGATE_PARTS": "a"})


def test_a_rare_option_has_a_variable_and_no_flag() -> None:
    assert of_environment({"KVGATE_TRIP_KEY": "k"}).trip.key == "k"
    with pytest.raises(SystemExit):
        parsed("--trip-key", "k")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trip-pace", "fast"], "--trip-pace: Invalid enum value 'fast'; it is late, quick or slow"),
        (
            ["--trip-wait-s", "5 min"],
            "--trip-wait-s: '5 min' is not a duration; give a number of seconds, or one with a unit, as in "
            "300ms, 30s, 5m, 2h",
        ),
        (["--trip-wait-s", "0"], "--trip-wait-s: '0' is not more than 0"),
        (["--trip-share", "a"], "--trip-share: 'a' is not NAME=VALUE"),
        (["--trip-share", "a=x"], '--trip-share: Expected `float`, got `str` - at `trip.share."a"`'),
        (["--trip-wait-s", "inf"], f"--trip-wait-s: 'inf' is not at most {MAX_SECONDS}"),
    ],
)
def test_a_mistake_names_the_flag_and_the_valid_values(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        parsed(*arguments)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("colours = 1", "unknown option `colours`"),
        ("[trip]\nwait-s = 1", "unknown option `wait-s` - at `trip`; did you mean wait_s?"),
        ("[tripp]\nname = 1", "unknown option `tripp`; did you mean trip?"),
        ("[trip]\ndoor = 1", "unknown option `door` - at `trip`; did you mean door in [home]?"),
        (
            '[parts.a]\nsize = 1\n[parts."b.c"]\nsizes = 1',
            'unknown option `sizes` - at `parts."b.c"`',
        ),
        ("[parts.b]\nsize = 'much'", 'Expected `int`, got `str` - at `parts."b".size`'),
        (
            "[trip]\nname = 'a'",
            'Expected `array`, got `str` - at `trip.name`; it is a list, as in name = ["…"]',
        ),
        (
            "[trip]\nwait_s = '1'",
            "'1' is not a duration - at `trip.wait_s`; give a number of seconds, or one with "
            "a unit, as in 300ms, 30s, 5m, 2h",
        ),
    ],
)
def test_a_mistake_in_a_file_names_the_similar_option(text: str, words: str, tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text(text)
    reader = ConfigReader(Options)
    reader.file(file)
    assert reader.mistakes == [f"{file}: {words}"]


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("KVGATE_TRIP_PACES", "; did you mean KVGATE_TRIP_PACE?"),
        ("KVGATE_ZZ", "; see kvgate serve --help-all"),
    ],
)
def test_an_unknown_variable_is_rejected(variable: str, words: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        of_environment({variable: "1"})
    assert str(caught.value) == f"environment: {variable} is not an option{words}"


@pytest.mark.parametrize("has_variables", [False, True])
def test_help_names_variables_where_they_are_read(has_variables: bool) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Options, has_variables=has_variables)
    text = " ".join(parser.format_help().split())
    assert "Pace of it, 100 %. Default: slow." in text and "[trip] A trip:" in text
    assert ("KVGATE_TRIP_PACE" in text) is has_variables


def test_no_secret_is_live() -> None:
    assert {each.live for each in by_key().values()} == {"", AT_ONCE, REQUESTS, CONNECTIONS}
    assert [each.key for each in by_key().values() if each.is_secret] == ["redis"]
    assert not by_key()["redis"].live


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300.0), ("300ms", 0.3), ("2", 2.0), ("0.5", 0.5), ("1h30m", 5400.0)]
)
def test_durations_have_units_wherever_they_are_given(text: str, seconds: float, tmp_path: Path) -> None:
    assert parsed("--trip-wait-s", text).trip.wait_s == pytest.approx(seconds)
    reader = ConfigReader(Options)
    reader.environment({"KVGATE_TRIP_WAIT_S": text})
    assert reader.checked().trip.wait_s == pytest.approx(seconds)
    (file := tmp_path / "file").write_text(f"[trip]\nwait_s = {text if text[-1].isdigit() else repr(text)}")
    reader = ConfigReader(Options)
    reader.file(file)
    assert reader.checked().trip.wait_s == pytest.approx(seconds)


def test_each_option_that_is_a_duration_takes_units() -> None:
    durations = [each for each in options(Config) if each.name.endswith(("_s", "_ms"))]
    assert len(durations) > 20
    for each in durations:
        reader = ConfigReader(Config)
        reader.flags({each.key: "1500ms"})
        assert not reader.mistakes, reader.mistakes
        assert each.of(reader.made()) == pytest.approx(1500.0 if each.name.endswith("_ms") else 1.5)


def test_flags_are_some_ninety_and_ten_are_common() -> None:
    """Ten of the flags are common, with --config.

    A further flag is a page that every user reads: is it a constant, or rare?
    """
    assert sum(each.has_flag for each in by_key().values()) <= 94
    assert sum(each.is_common for each in by_key().values()) == 9
