"""Every mistake of every source is collected, and valid values count."""

from contextlib import suppress
from datetime import date
from pathlib import Path

import pytest

from gateway.config import Config, config_of, read, replaced
from gateway.config.options import options
from gateway.config.reading import ConfigErrors, ConfigReader
from gateway.config.tenant_limits import TenantLimits

FILE = """
max_attempts = 3
[serer]
port = 1
[proxy]
max_atempts = 3
retry_share = 2.0
pool_idle_s = 1.0
[redis]
port = 1
"""


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    (path := tmp_path / "c.toml").write_text(FILE)
    reader = read({"port": "x", "prot": "1"}, {"KVGATE_PROT": "1", "KVGATE_VERIFY": "off"}, path)
    assert reader.mistakes == [
        f"{path}: `max_attempts` is now max_attempts in [proxy]",
        f"{path}: unknown option `serer`; did you mean server?",
        f"{path}: unknown option `max_atempts` - at `proxy`; did you mean max_attempts?",
        f"{path}: Expected `float` <= 1.0 - at `proxy.retry_share`",
        f"{path}: unknown option `port` - at `redis`; did you mean port in [server]?",
        "environment: KVGATE_PROT is not an option; did you mean KVGATE_PORT?",
        "environment: KVGATE_VERIFY is now KVGATE_USAGE_INJECTION",
        "--port: 'x' is not a whole number",
        "there is no option prot; did you mean port?",
    ]
    with pytest.raises(ConfigErrors) as caught:
        reader.checked()
    assert caught.value.mistakes == reader.mistakes
    assert str(caught.value) == "; ".join(reader.mistakes)


def test_valid_values_count_beside_mistakes(tmp_path: Path) -> None:
    (path := tmp_path / "c.toml").write_text(FILE)
    assert read({}, {}, path).made() == config_of(pool_idle_s=1.0)


@pytest.mark.parametrize("text", ['redis = "redis://h"', "worker = ['http://a:1']", 'policy = "random"'])
def test_a_flat_file_of_an_older_version_is_answered_with_the_new_tables(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "c.toml").write_text(text)
    (mistake,) = read({}, {}, path).mistakes
    assert " is now " in mistake and " in [" in mistake


def test_values_may_be_structs() -> None:
    assert config_of(tenants={"a": TenantLimits(weight=2.0)}).tenants["a"].weight == 2.0


def test_options_can_be_replaced_one_by_one() -> None:
    config = replaced(
        config_of(port=1), redis="redis://h", redis_timeout_s=3.0, tenants={"a": TenantLimits()}
    )
    assert (config.redis.url, config.redis.timeout_s, config.server.port) == ("redis://h", 3.0, 1)
    assert config.tenants == {"a": TenantLimits()}


def test_the_key_of_admin_commands_is_no_option() -> None:
    assert read({}, {"KVGATE_ADMIN_KEY": "secret"}, None).mistakes == []


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("[[models]]\nx = 1", "`models`; there is one table for each, as in [models.NAME]"),
        ("[[models.m]]\nx = 1", '`models."m"`; there is one table for each, as in [models.NAME]'),
        ("models = 1", "`models`; there is one table for each, as in [models.NAME]"),
        ('workers = ["http://a:1"]', "`workers`; there is one table for each, as in [workers.NAME]"),
        (
            '[workers]\nurl = "http://a:1"',
            '`workers."url"`; there is one table for each, as in [workers.NAME]',
        ),
        ("[[redis]]\nurl = 1", "`redis` is a list of tables; it is one table, as in [redis]"),
        ("[[server]]\nport = 1", "`server` is a list of tables; it is one table, as in [server]"),
        ("server = 1", "`server` is given a value; it is one table, as in [server]"),
    ],
)
def test_tables_given_as_lists_and_lists_as_tables_are_one_plain_line(
    text: str, mistake: str, tmp_path: Path
) -> None:
    (path := tmp_path / "c.toml").write_text(text)
    (found,) = read({}, {}, path).mistakes
    assert found.startswith(f"{path}: ") and found.endswith(mistake) and "\n" not in found


ODD = [[{}], [{"a": 1}], [[]], [1], ["x"], {}, {"a": {}}, {"a": [{}]}, {"a": 1}, 1, 1.5, True, "x", date.min]


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_no_kind_of_value_of_any_option_or_table_ends_in_a_traceback(value: object) -> None:
    for option in options(Config):
        for tables in (option.nested(value), {option.table or option.name: value}):
            reader = ConfigReader(Config)
            reader.tables(tables, "c.toml")
            assert all(each.startswith("c.toml: ") for each in reader.mistakes)
            with suppress(ConfigErrors):
                reader.made()
