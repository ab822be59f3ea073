"""Options of any struct: flags, help and refusals."""

import argparse
from typing import Annotated, Literal

import msgspec
import pytest

from gateway.config.options import (
    MAX_SECONDS,
    Option,
    add_flags,
    convert,
    from_environment,
    from_flags,
    option,
    options,
)
from gateway.core.errors import ConfigError


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int = 1


class Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pace: Annotated[Literal["slow", "quick", "late"], option("How it goes, 100 %.")] = "slow"
    wait_s: Annotated[float, option("Between two.", "seconds", gt=0)] = 1.5
    name: Annotated[list[str], option("Whose.", "path")] = msgspec.field(default_factory=list)
    is_loud: Annotated[bool, option("Says it.")] = False
    key: Annotated[str, option("Its key.")] = ""
    share: Annotated[dict[str, float], option("Whose part.", "share")] = msgspec.field(default_factory=dict)
    parts: Annotated[dict[str, Part], option("Nested.")] = msgspec.field(default_factory=dict)


def parsed(*arguments: str, has_variables: bool = False) -> Told:
    parser = argparse.ArgumentParser()
    add_flags(parser, Told, has_variables=has_variables)
    return convert(from_flags(vars(parser.parse_args(arguments)), Told), Told, "flags")


def test_flags_are_read_as_their_fields_types() -> None:
    assert parsed() == Told()
    given = parsed("--pace", "late", "--wait-s", "2", "--name", "a", "--name", "b", "--is-loud")
    assert given == Told(pace="late", wait_s=2.0, name=["a", "b"], is_loud=True)
    assert parsed("--no-is-loud").is_loud is False


def test_pairs_are_given_one_by_one_and_what_is_nested_only_in_a_file() -> None:
    assert parsed("--share", "a=1", "--share", "b=0.5").share == {"a": 1.0, "b": 0.5}
    assert from_environment({"KVGATE_SHARE": "a=1, b=0.5"}, Told) == {"share": {"a": "1", "b": "0.5"}}
    assert from_flags({"share": {"a": 1.0}}, Told) == {"share": {"a": 1.0}}
    with pytest.raises(SystemExit):
        parsed("--parts", "a")
    with pytest.raises(ConfigError, match="^environment: KVGATE_PARTS: parts goes into a file"):
        from_environment({"KVGATE_PARTS": "a"}, Told)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pace", "fast"], "--pace: Invalid enum value 'fast' - at `pace`; it is late, quick or slow"),
        (["--wait-s", "0"], "--wait-s: Expected `float` > 0.0 - at `wait_s`"),
        (["--share", "a"], "--share: 'a' is not NAME=VALUE"),
        (["--share", "a=x"], '--share: Expected `float`, got `str` - at `share."a"`'),
        (["--wait-s", "inf"], f"--wait-s: Expected `float` <= {MAX_SECONDS}.0 - at `wait_s`"),
    ],
)
def test_a_refusal_names_the_flag_and_what_would_be_right(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(*arguments)
    assert str(caught.value) == words


def test_what_is_no_option_is_said() -> None:
    with pytest.raises(ConfigError, match="^file: unknown option `colour`$"):
        convert({"colour": 1}, Told, "file")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"wait-s": 1}, "file: unknown option `wait-s`; did you mean wait_s?"),
        ({"names": 1}, "file: unknown option `names`; did you mean name?"),
        (
            {"parts": {"a": {"size": 1}, "b.c": {"sizes": 1}}},
            'file: unknown option `sizes` - at `parts."b.c"`',
        ),
        (
            {"parts": {"a": {"size": 1}, "b": {"size": "much"}}},
            'file: Expected `int`, got `str` - at `parts."b".size`',
        ),
        ({"name": "a"}, 'file: Expected `array`, got `str` - at `name`; it is a list, as in name = ["…"]'),
    ],
)
def test_what_was_meant_is_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(values, Told, "file", strict=True)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("variable", "words"),
    [("KVGATE_NAMES", "; did you mean KVGATE_NAME?"), ("KVGATE_ZZ", "; see kvgate serve --help")],
)
def test_a_variable_that_is_no_option_is_refused(variable: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_environment({variable: "1"}, Told)
    assert str(caught.value) == f"environment: {variable} is no option{words}"


def test_fields_are_shown_with_their_names_defaults_and_units() -> None:
    shown = {each.name: each for each in options(Told)}
    assert shown["wait_s"] == Option("wait_s", 1.5, "seconds", "Between two.", False, False, ())
    assert (shown["wait_s"].flag, shown["wait_s"].variable) == ("--wait-s", "KVGATE_WAIT_S")
    assert (shown["pace"].choices, shown["pace"].metavar) == (("late", "quick", "slow"), "late|quick|slow")
    assert [shown[name].metavar for name in ("wait_s", "name", "key")] == ["SECONDS", "PATH", "TEXT"]
    assert [shown[name].help for name in ("wait_s", "name", "key")] == [
        "Between two. Default: 1.5 seconds.",
        "Whose. Default: none.",
        "Its key. Default: none.",
    ]


@pytest.mark.parametrize("has_variables", [False, True])
def test_help_names_variables_where_they_are_read(
    has_variables: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed("--help", has_variables=has_variables)
    text = " ".join(capsys.readouterr().out.split())
    assert "How it goes, 100 %. Default: slow." in text
    assert ("KVGATE_PACE" in text) is has_variables
