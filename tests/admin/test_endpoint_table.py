"""The table of endpoints: each row has a handler, and each handler a row."""

import pytest
from aiohttp import web

from gateway.admin.console.event_streams import PATHS
from gateway.admin.console.handlers import console_handlers
from gateway.admin.endpoint_table import ProcessScope, bound
from gateway.app import Gateway
from gateway.app.gateway_parts import Parts
from gateway.config import config_of
from gateway.processes.admin import Aggregate

ROUTES = Parts.admin_routes()


async def _answer(request: web.Request) -> web.Response:
    return web.Response()


def test_paths_and_names_of_rows_are_unique() -> None:
    assert len({each.name for each in ROUTES}) == len(ROUTES)
    assert len({(each.method, each.path) for each in ROUTES}) == len(ROUTES)


def test_a_handler_without_a_row_is_rejected() -> None:
    with pytest.raises(KeyError, match="handlers without a row in the table: other"):
        list(bound({"other": _answer, "health": _answer}))


async def test_each_row_has_a_handler() -> None:
    gateway = Gateway(config_of())
    try:
        handled = gateway.parts.admin_handlers().keys() | {"metrics"}
    finally:
        await gateway.stop(0)
    handled |= console_handlers(dict.fromkeys(PATHS, _answer)).keys()
    assert handled == {each.name for each in ROUTES}


def test_rows_are_bound_to_handlers_by_name() -> None:
    (route,) = bound({"remove_worker": _answer})
    assert (route.method, route.path) == ("DELETE", "/admin/workers/{name:.+}")


def test_a_supervisor_handles_the_endpoints_that_one_process_answers_for_all() -> None:
    handled = Aggregate.__new__(Aggregate)._handlers().keys()
    wanted = {each.name for each in ROUTES if each.processes in (ProcessScope.ONE, ProcessScope.SUPERVISOR)}
    assert wanted <= handled
