from pathlib import Path

import pytest

from gateway.config import load
from gateway.core.errors import ConfigError
from gateway.redis.options import RedisOptions, redis_of, shown


def read(**flags: object) -> RedisOptions:
    options = redis_of(load(flags, environ={}))
    assert options
    return options


def refused(**flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        redis_of(load(flags, environ={}))
    return str(caught.value)


def test_without_a_url_there_is_no_redis() -> None:
    assert redis_of(load({}, environ={})) is None
    assert redis_of(load({"index": "memory"}, environ={})) is None


def test_a_url_is_split() -> None:
    options = read(redis="redis://u:p@10.0.0.1:6380/2", redis_prefix="f", redis_timeout_s=3)
    assert dict(options.connection) == {
        "username": "u",
        "password": "p",
        "host": "10.0.0.1",
        "port": 6380,
        "db": 2,
    }
    assert (options.prefix, options.timeout_s) == ("f", 3.0)
    assert read(redis="unix:///run/redis.sock?db=1").connection["path"] == "/run/redis.sock"


@pytest.mark.parametrize(
    "url", ["redis://u:secret@h:1/0", "redis://:secret@h:1/0", "rediss://u:secret@h:1/0"]
)
def test_passwords_are_never_shown(url: str) -> None:
    options = read(redis=url)
    assert "secret" not in repr(options) and "secret" not in shown(url)
    assert options.where.endswith("://h:1/0")
    assert "secret" not in refused(redis=url.replace("h:1/0", "h:port/0"))
    assert "secret" not in refused(redis=url.replace("redis", "http"))
    assert shown("unix:///run/redis.sock?password=secret") == "unix:///run/redis.sock"


def test_a_password_from_a_file_overrides_the_url(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("right\n")
    options = read(redis="redis://u:wrong@h:1", redis_password_file=str(file))
    assert (options.connection["username"], options.connection["password"]) == ("u", "right")
    assert "redis_password_file" in refused(redis="redis://h", redis_password_file=str(tmp_path / "none"))


def test_files_for_tls_are_read(tmp_path: Path) -> None:
    (file := tmp_path / "pem").write_text("-----BEGIN")
    files = {"redis_ca_file": str(file), "redis_cert_file": str(file)}
    connection = read(redis="rediss://h", **files).connection
    assert {connection[n] for n in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")} == {str(file)}
    assert "rediss:// only" in refused(redis="redis://h", **files)
    assert refused(redis="rediss://h", redis_ca_file="/none") == "redis_ca_file: /none cannot be read"


@pytest.mark.parametrize(
    "url",
    [
        "10.0.0.1:6379",
        "http://h",
        "redis://",
        "redis://h:x",
        "redis:///0",
        "unix:/a",
        "redis://[::1",
        "redis://[x]:1",
    ],
)
def test_an_invalid_url_is_rejected(url: str) -> None:
    assert refused(redis=url).startswith("redis: '")


def test_sentinels_and_their_master_are_read() -> None:
    url = "redis+sentinel://u:p@10.0.0.1,b:1/main/2?sentinel_password=s&sentinel_username=w"
    options = read(redis=url)
    assert (options.locators, options.service) == ((("10.0.0.1", 26379), ("b", 1)), "main")
    assert dict(options.connection) == {"username": "u", "password": "p", "db": 2}
    assert dict(options.locator_options) == {"username": "w", "password": "s"}
    assert options.where == "redis+sentinel://10.0.0.1,b:1/main/2" and options.prefix == "kvgate"
    assert "names no master" in refused(redis="redis+sentinel://a,b")


def test_nodes_of_a_cluster_are_read() -> None:
    options = read(redis="redis+cluster://u:p@a,[::1]:7000", redis_prefix="f")
    assert (options.locators, options.service) == ((("a", 6379), ("::1", 7000)), "")
    assert dict(options.connection) == dict(options.locator_options) == {"username": "u", "password": "p"}
    assert options.prefix == "{f}"  # one slot
    assert read(redis="redis+cluster://[::1],a:1").locators == (("::1", 6379), ("a", 1))
    assert read(redis="redis+sentinel://a,[fd00::1]:1/m?db=3").locators == (("a", 26379), ("fd00::1", 1))
    assert "a Cluster has only 0" in refused(redis="redis+cluster://a/3")


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_several_servers_by_tls_with_a_password_from_a_file(kind: str, tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("secret")
    url = f"rediss+{kind}://a,b/m" if kind == "sentinel" else f"rediss+{kind}://a,b"
    options = read(redis=url, redis_ca_file=str(file), redis_password_file=str(file))
    assert options.connection["ssl_ca_certs"] == options.locator_options["ssl_ca_certs"] == str(file)
    assert options.connection["password"] == "secret" and "secret" not in repr(options)
    assert ("password" in options.locator_options) == (kind == "cluster")


@pytest.mark.parametrize("hosts", ["", "a,,b", "a:x,b", "a,b:99999", "a,[::1", "[x]:1,b"])
def test_invalid_hosts_are_rejected(hosts: str) -> None:
    for kind in ("sentinel", "cluster"):
        assert "cannot be read: expected HOST:PORT" in refused(redis=f"redis+{kind}://u:secret@{hosts}/m")
        assert "secret" not in refused(redis=f"redis+{kind}://u:secret@{hosts}/m")


def test_an_embedded_server_requires_serve() -> None:
    assert "kvgate serve" in refused(redis="embedded")


@pytest.mark.parametrize("prefix", ["", "a b", "a{b}", "x" * 65])
def test_an_unsafe_prefix_is_rejected(prefix: str) -> None:
    assert "redis-prefix" in refused(redis="redis://h", redis_prefix=prefix)
