"""The table of routes: each row complete, and used by all its readers."""

import pytest

from gateway.apis.error_format import is_anthropic
from gateway.apis.open_routes import CONTROL
from gateway.apis.to_chat import TRANSLATORS
from gateway.core.route_table import ADDED, OWN, ROUTES, TABLE, ErrorFormat, Route, RouteKind, route_of
from gateway.tenancy.admission.gate import UNQUEUED


def test_paths_are_unique_and_no_other_kinds_of_paths() -> None:
    assert len(ROUTES) == len(TABLE)
    assert not ROUTES.keys() & {*OWN, *CONTROL}


@pytest.mark.parametrize("route", TABLE, ids=lambda route: route.path)
def test_a_route_has_a_translator_exactly_where_its_body_is_a_chat_in_another_form(route: Route) -> None:
    assert (route.to_chat in TRANSLATORS) == (route.kind is RouteKind.AGENT)
    assert route.path.startswith("/") and not route.path.endswith("/")
    assert is_anthropic(route.path) == (route.errors is ErrorFormat.ANTHROPIC)
    assert (route.path in UNQUEUED) == (not route.is_queued)


def test_each_translator_has_a_route() -> None:
    assert {route.to_chat for route in TABLE if route.to_chat} == set(TRANSLATORS)


def test_a_path_outside_the_table_has_the_row_of_added_routes() -> None:
    assert route_of("/mine") is ADDED
    assert ADDED.kind is RouteKind.PASS and not ADDED.names_model
