"""The reference page has every option, in tables of equal rows."""

import re

from gateway.agent.config import AgentConfig
from gateway.config import Config
from gateway.config.options import options
from gateway.config.reference import reference_page

PAGE = reference_page(AgentConfig)
GATEWAYS, _, AGENTS = PAGE.partition("## `kvgate agent`")


def test_rows_are_equal() -> None:
    for page, num_columns in ((GATEWAYS, 7), (AGENTS, 4)):
        rows = [line for line in page.splitlines() if line.startswith("|")]
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {num_columns + 1}


def test_every_option_has_its_row_below_its_table() -> None:
    heading = ""
    found = set()
    for line in GATEWAYS.splitlines():
        heading = line if line.startswith("## ") else heading
        if row := re.match(r"\| `(\w+)` \|", line):
            table = re.match(r"## `\[(\w+)", heading)
            assert table
            found.add(f"{table[1]}.{row[1]}")
    assert found == {each.path for each in options(Config) if not each.is_table}
    named = [each.name for each in options(Config) if each.is_table]
    assert [name for name in named if f"## `[{name}.NAME]`" not in GATEWAYS] == []


def test_the_page_says_which_options_a_reload_changes() -> None:
    rows = {
        row.split(" | ")[0]: row.split(" | ")[5] for row in GATEWAYS.splitlines() if row.startswith("| `")
    }
    assert (rows["| `idle_timeout_s`"], rows["| `unix_socket`"]) == ("live: new requests", "restart")
