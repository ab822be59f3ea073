"""What is said of options that are live; that they are is in tests/app/test_reconfigure.py."""

from gateway.cli import reference_page
from gateway.config import Config
from gateway.config.live import AT_ONCE, CONNECTIONS, LIVE, REQUESTS, SECRET


def test_the_tables_name_options() -> None:
    assert LIVE.keys() <= set(Config.__struct_fields__) and set(Config.__struct_fields__) >= SECRET
    assert set(LIVE.values()) == {AT_ONCE, REQUESTS, CONNECTIONS}


def test_nothing_that_is_secret_is_taken_live() -> None:
    assert not SECRET & LIVE.keys()


def test_the_reference_says_which_they_are() -> None:
    rows = [line.split(" | ") for line in reference_page().splitlines() if line.startswith("| `--")]
    said = {row[1].strip("` "): row[5] for row in rows if len(row) == 7}
    assert said["idle_timeout_s"] == "live: new requests" and said["port"] == "restart"
