"""Precedence of flags, environment, file and defaults, and the messages of rejected configurations."""

from pathlib import Path

import pytest

from gateway.config import Config, config_of, load
from gateway.config.options import Option, options
from gateway.core.errors import ConfigError

OPTIONS = list(options(Config))
QUANTITIES = ("_s", "_bytes", "_port", "port", "_attempts")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "kvgate.toml"
    path.write_text(text)
    return path


def rejection(
    flags: dict[str, object] | None = None, environ: dict[str, str] | None = None, path: Path | None = None
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, environ or {}, path)
    return str(caught.value)


# precedence ------------------------------------------------------------------------------------


def test_configuration_without_settings_has_all_defaults() -> None:
    assert load({}, {}) == config_of()
    assert load({"port": None, "worker": None}, {"HOME": "/", "PATH": ""}) == config_of()


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, '[server]\nport = 1\nhost = "file"\n[admin]\nport = 1\n')
    environ = {"KVGATE_PORT": "2", "KVGATE_ADMIN_PORT": "2"}
    config = load({"port": "3"}, environ, path)
    assert (config.server.port, config.admin.port, config.server.host, config.admin.host) == (
        3,
        2,
        "file",
        "127.0.0.1",
    )


def test_lists_replace_those_of_lower_precedence(tmp_path: Path) -> None:
    path = write(tmp_path, '[fleet]\nworker = ["http://f:1"]')
    assert load({}, {}, path).fleet.worker == ["http://f:1"]
    environ = {"KVGATE_WORKER": "http://e:1, http://e:2,"}
    assert load({}, environ, path).fleet.worker == ["http://e:1", "http://e:2"]
    assert load({"worker": ["http://a:1"]}, environ, path).fleet.worker == ["http://a:1"]
    assert load({}, {"KVGATE_WORKER": ""}, path).fleet.worker == []


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("False", False), ("0", False)])
def test_booleans_are_read_from_text_in_the_environment(text: str, value: bool) -> None:
    assert load({}, {"KVGATE_LOG_REQUESTS": text}).log.requests is value


def test_booleans_are_read_from_flags_and_files(tmp_path: Path) -> None:
    path = write(tmp_path, "[log]\nrequests = true\n[headers]\nexpose_headers = true")
    config = load({"log_requests": False}, {}, path)
    assert (config.log.requests, config.headers.expose_headers) == (False, True)


# rejected configurations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[server]\nport = "8000"', ["Expected `int`, got `str`", "`server.port`"]),
        ("[server]\nprot = 8000", ["unknown option `prot`"]),
        ("[serve]\nport = 1", ["unknown option `serve`; did you mean server?"]),
        ("port = 8000", ["`port` is now port in [server]"]),
        ("[fleet]\nworker = 'http://a:1'", ["Expected `array`", "`fleet.worker`"]),
        ("[fleet]\nworker = [1]", ["Expected `str`, got `int`", "`fleet.worker[0]`"]),
        ("[log]\nrequests = 1", ["Expected `bool`", "`log.requests`"]),
        ("[index]\nbackend = 'disk'", ["Invalid enum value 'disk'", "`index.backend`"]),
        ("policies = 'mine'", ["Expected `object`", "`policies`"]),
        ("[policies.mine]\nscorer = 1", ["unknown option `scorer`", '`policies."mine"`']),
        ("[server]\nhead_timeout_s = 0", ["> 0", "`server.head_timeout_s`"]),
        ("[proxy]\nidle_timeout_s = -1", [">= 0", "`proxy.idle_timeout_s`"]),
        ("[proxy]\nidle_timeout_s = inf", ["<= 31536000", "`proxy.idle_timeout_s`"]),
        ("[proxy]\nidle_timeout_s = nan", ["`proxy.idle_timeout_s`"]),
        ("[server]\nport = 65536", ["<= 65535", "`server.port`"]),
        ("host = 1 2", ["is not TOML", "line 1"]),
    ],
)
def test_file_is_rejected_with_its_name_and_the_field(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    message = rejection(path=path)
    assert message.startswith(f"{path}: ")
    assert [word for word in words if word not in message] == []


def test_invalid_file_is_rejected_even_where_a_flag_overrides_it(tmp_path: Path) -> None:
    assert "port" in rejection({"port": "1"}, path=write(tmp_path, '[server]\nport = "x"'))


def test_missing_or_binary_file_is_rejected(tmp_path: Path) -> None:
    assert rejection(path=tmp_path / "no.toml").endswith("no.toml: cannot be read: No such file or directory")
    assert "cannot be read" in rejection(path=tmp_path)
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    assert "is not TOML" in rejection(path=path)


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("KVGATE_PORT", "80a", "'80a' is not a whole number"),
        ("KVGATE_PORT", "", "is not a whole number"),
        ("KVGATE_LOG_REQUESTS", "yes", "'yes' is neither true nor false"),
        ("KVGATE_INDEX", "disk", "Invalid enum value 'disk'"),
        ("KVGATE_MAX_ATTEMPTS", "0", "'0' is not at least 1"),
        ("KVGATE_PROT", "1", "is not an option"),
        ("KVGATE_", "1", "is not an option"),
        ("KVGATE_port", "1", "is not an option"),
    ],
)
def test_variable_is_rejected_by_name(variable: str, text: str, words: str) -> None:
    message = rejection(environ={variable: text})
    assert message.startswith(f"environment: {variable}")
    assert words in message


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "http"}, "--port: 'http' is not a whole number"),
        ({"head_timeout_s": "-1"}, "--head-timeout-s: "),
        ({"index": "disk"}, "--index: Invalid enum value 'disk'"),
    ],
)
def test_flag_is_rejected_by_name_and_not_by_the_files_name(
    tmp_path: Path, flags: dict[str, object], words: str
) -> None:
    assert rejection(flags, path=write(tmp_path, "[server]\nport = 1")).startswith(words)


# every option ----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_option_has_a_help_text_and_each_quantity_a_unit(option: Option) -> None:
    assert option.help.endswith(".") and len(option.help) > 20
    if option.name.endswith(QUANTITIES):
        assert option.unit
    assert option.name.endswith("_s") == (option.unit in ("seconds", "tokens/s"))
    assert option.name.endswith("_bytes") == (option.unit == "bytes")


@pytest.mark.parametrize("option", [o for o in OPTIONS if not o.is_table], ids=lambda option: option.key)
def test_every_default_can_be_given_as_text(option: Option) -> None:
    text = ",".join(option.default) if option.is_list or option.is_map else str(option.default)
    assert load({}, {option.variable: text}) == config_of()


def test_flags_and_variables_are_named_after_their_key() -> None:
    port = next(option for option in OPTIONS if option.key == "admin_port")
    assert (port.flag, port.variable, port.choices) == ("--admin-port", "KVGATE_ADMIN_PORT", ())
    events = next(option for option in OPTIONS if option.key == "events")
    assert events.choices == ("auto", "off")


def test_variables_of_a_kubernetes_service_are_ignored() -> None:
    links = {
        "KVGATE_PORT": "tcp://10.0.0.1:8000",
        "KVGATE_SERVICE_HOST": "10.0.0.1",
        "KVGATE_SERVICE_PORT": "8000",
        "KVGATE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "KVGATE_ADMIN_SERVICE_HOST": "10.0.0.1",
        "KVGATE_ADMIN_PORT": "tcp://10.0.0.1:9400",
    }
    assert load({}, environ=links) == config_of()
