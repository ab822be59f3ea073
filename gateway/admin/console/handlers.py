"""Handlers of the console, of one process and of a supervisor."""

from collections.abc import Mapping

from aiohttp.typedefs import Handler

from gateway.admin.console.assets import show_file, show_index
from gateway.admin.console.event_streams import PATHS, event_handlers
from gateway.admin.console.login import login_handlers


def console_handlers(others: Mapping[str, Handler]) -> dict[str, Handler]:
    """Handlers by their name in the table (`admin/endpoint_table.py`); `others` answer for what moves."""
    sources = {topic: others[topic] for topic in PATHS}
    return {
        "console": show_index,
        "console_file": show_file,
        **login_handlers(),
        **event_handlers(sources),
    }
