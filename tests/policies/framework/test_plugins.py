from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.policies.framework import plugins
from gateway.policies.framework.plugins import installed, kind_of, read_file

FUNCTION = "def score(query, candidates):\n    return [1 - each.kv_usage for each in candidates]\n"
CLASSES = """
from dataclasses import dataclass
from gateway.policies.base import Policy

@dataclass
class Mine:
    name = "mine"
    size: "int" = 1
    def choose(self, query, candidates, rng):
        return 0

class Near:
    def keep(self, query, candidates):
        return candidates

class Helper:
    pass
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my_policy.py"
    path.write_text(text)
    return path


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_file(path)
    return str(caught.value)


def test_a_function_is_a_plugin_named_after_its_file(tmp_path: Path) -> None:
    file = read_file(written(tmp_path, FUNCTION))
    plugin = file.plugins["my_policy"]
    assert (plugin.kind, plugin.origin, file.policy) == ("scorer", str(file.path), None)
    assert (plugin.make().pull, plugin.make().score(None, [])) == ("spread", [])
    pulls = read_file(written(tmp_path, FUNCTION + 'pull = "reuse"\n'))
    assert pulls.plugins["my_policy"].make().pull == "reuse"


def test_classes_are_plugins_by_their_methods_and_imports_are_not(tmp_path: Path) -> None:
    file = read_file(written(tmp_path, CLASSES))
    assert {name: plugin.kind for name, plugin in file.plugins.items()} == {
        "mine": "policy",
        "Near": "filter",
    }
    assert file.policy == "mine"
    assert file.plugins["mine"].make() is not file.plugins["mine"].make()


def test_a_policy_given_as_text_overrides_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "broken(")
    assert list(read_file(path, FUNCTION).plugins) == ["my_policy"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ndef choose(:\n", "my_policy.py:2: invalid syntax"),
        (
            "\n\nimport no_such_module\n",
            "my_policy.py:3: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("import sys\nsys.exit(3)\n", "my_policy.py:2: SystemExit: 3"),
        ("x = 1\n", "has no function or class with one of choose, keep, score, pick"),
        ("def choose(): 0\ndef pick(): 0\n", "has choose and pick: put each into a class"),
    ],
)
def test_a_broken_file_is_reported_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    error = refused(written(tmp_path, text))
    assert error.startswith(f"--policy-file {tmp_path}/my_policy.py: ") and error.endswith(words)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "none.py")


def test_a_broken_file_keeps_the_previous_module(tmp_path: Path) -> None:
    path = written(tmp_path, CLASSES)
    make = read_file(path).plugins["mine"].make
    refused(written(tmp_path, "broken("))
    import sys

    assert sys.modules[type(make()).__module__].Mine is make


def test_an_object_of_no_or_two_kinds_is_no_plugin() -> None:
    class Both:
        def choose(self) -> None: ...
        def keep(self) -> None: ...

    assert (kind_of(Both), kind_of(1)) == (None, None)


def installed_from(monkeypatch: pytest.MonkeyPatch, **points: str) -> plugins.InstalledPlugins:
    group = EntryPoints(EntryPoint(name, value, plugins.GROUP) for name, value in points.items())
    monkeypatch.setattr(plugins, "entry_points", lambda group: groups[group])
    groups = {plugins.GROUP: group}
    return installed()


def test_plugins_of_packages_are_loaded_and_the_rest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = installed_from(
        monkeypatch,
        theirs="gateway.policies.baselines:Random",
        broken="no_such:thing",
        other="json:dumps",
        ends="tests.policies.framework.test_plugins:ends",
    )
    (plugin,) = found.plugins.values()
    assert (plugin.name, plugin.kind, plugin.make().name) == ("theirs", "policy", "random")
    broken, other, ends = (found.faults[name] for name in ("broken", "other", "ends"))
    assert broken.startswith("policy 'broken' of a package cannot be loaded: ")
    assert broken.endswith("No module named 'no_such'")
    assert other.startswith("policy 'other' of a package") and ends.startswith("policy 'ends' of a package")


def ends() -> None:
    """End the process, as the code of a package may."""
    raise SystemExit("over")
