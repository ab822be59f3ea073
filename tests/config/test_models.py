"""Tables of models, as they are written in a file."""

from pathlib import Path

import pytest

from gateway.config import config_of, load
from gateway.config.models import ModelTable, aliases_of
from gateway.core.errors import ConfigError


def test_by_default_models_are_found_by_the_hub_and_workers_are_probed() -> None:
    config = config_of()
    assert (config.models, config.tokenizer.hub, config.tokenizer.probe) == ({}, True, True)


def test_models_are_tables(tmp_path: Path) -> None:
    path = tmp_path / "kvgate.toml"
    path.write_text(
        '[models."org/name"]\ntokenizer = "/models/name"\ntemplate = "/t.jinja"\nrenderer = "jinja"\n'
        'aliases = ["gpt-4", "fast"]\n[models.small]\n'
    )
    models = load({}, {}, path).models
    assert models["org/name"] == ModelTable(
        tokenizer="/models/name", template="/t.jinja", renderer="jinja", aliases=["gpt-4", "fast"]
    )
    assert models["small"] == ModelTable()
    assert aliases_of(models) == {"gpt-4": "org/name", "fast": "org/name"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[models.a]\ntokeniser = '/x'", ["tokeniser"]),
        ("[models.a]\nrenderer = 'jinja2'", ["renderer", "jinja2"]),
        ("[models.a]\naliases = 'b'", ["aliases", "`array`"]),
        ("[models.a]\naliases = ['b']\n[models.b]", ["models.a.aliases", "'b' is the name of a model"]),
        ("[models.a]\naliases = ['']", ["models.a.aliases"]),
        (
            "[models.a]\naliases = ['x']\n[models.b]\naliases = ['x']",
            ["models.b.aliases", "'x' already stands for a"],
        ),
    ],
)
def test_a_wrong_value_is_rejected_with_its_position(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "kvgate.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load({}, {}, path)
    assert [word for word in words if word not in str(caught.value)] == []
