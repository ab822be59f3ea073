"""Policy options: tables of the file, and pairs of flags."""

from pathlib import Path

import pytest

from gateway.config import load
from gateway.core.errors import ConfigError
from gateway.policies.composition import Composition

MINE = """
[policy]
name = "mine"
[policies.mine]
filters = ["topology"]
scorers = { prefix_overlap = 3, least_load = 1 }
picker = "max"
"""


def test_policies_are_composed_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kvgate.toml"
    path.write_text(MINE)
    config = load({}, {}, path)
    assert config.policy.name == "mine"
    scorers = {"prefix_overlap": 3.0, "least_load": 1.0}
    assert config.policies == {"mine": Composition(filters=["topology"], scorers=scorers, picker="max")}


def test_compositions_are_rejected_outside_a_file() -> None:
    with pytest.raises(ConfigError, match="environment: KVGATE_POLICIES: policies goes into a file"):
        load({}, {"KVGATE_POLICIES": "mine"})


@pytest.mark.parametrize("name", ["session_header", "session_cookie"])
def test_an_invalid_header_or_cookie_name_is_rejected(name: str) -> None:
    assert getattr(load({name: "X-Chat_1"}, {}).headers, name) == "X-Chat_1"
    with pytest.raises(ConfigError, match=name.replace("_", "-")):
        load({name: "a b"}, {})
