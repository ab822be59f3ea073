"""Faults of Kubernetes objects and of their API server, each with the test that shows what follows."""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
HERE, BLACK_BOX, HOSTILE = "discovery/kubernetes", "blackbox/test_kubernetes.py", "hostile/test_kube_lines.py"

FAULTS: dict[str, tuple[str, str]] = {
    # objects
    "an address in two slices": (BLACK_BOX, "test_a_service_has_the_endpoints_of_all_its_slices"),
    "slices that disagree about an address": (
        f"{HERE}/test_endpoints.py",
        "test_endpoints_of_several_objects",
    ),
    "null conditions of an endpoint": (f"{HERE}/test_endpoints.py", "test_the_state_of_an_endpoint"),
    "null conditions of a pod": (f"{HERE}/test_endpoints.py", "test_a_pod_without_conditions_is_not_ready"),
    "null addresses and endpoints": (
        f"{HERE}/test_endpoints.py",
        "test_null_lists_and_addresses_are_no_endpoints",
    ),
    "addresses that are none": (HOSTILE, "test_a_slice_of_odd_endpoints_has_those_that_are_addresses"),
    "addresses of the cloud's metadata": (
        f"{HERE}/test_membership.py",
        "test_addresses_that_no_worker_has_are_left_out_and_logged",
    ),
    "a slice of names (FQDN)": (f"{HERE}/test_endpoints.py", "test_a_slice_of_names_is_refused"),
    "a port that a slice lacks": (f"{HERE}/test_endpoints.py", "test_the_port_of_a_slice"),
    "a port that a pod lacks": (
        f"{HERE}/test_endpoints.py",
        "test_a_pod_without_the_named_port_is_refused_with_the_reason",
    ),
    "appProtocol: https": (f"{HERE}/test_endpoints.py", "test_an_https_port_of_a_slice"),
    "appProtocol: h2c": (f"{HERE}/test_endpoints.py", "test_the_port_of_a_slice"),
    "both families of one pod": (f"{HERE}/test_endpoints.py", "test_endpoints_of_several_objects"),
    "hostNetwork": (
        f"{HERE}/test_endpoints.py",
        "test_pods_in_the_network_of_one_node_differ_by_their_ports",
    ),
    "a pod without an address": (
        f"{HERE}/test_endpoints.py",
        "test_a_pod_without_an_address_has_no_endpoint",
    ),
    "an evicted pod": (f"{HERE}/test_endpoints.py", "test_the_state_of_a_pod"),
    "a pod that is deleted with requests": (
        BLACK_BOX,
        "test_a_pod_drains_when_it_is_deleted_and_ends_what_it_has",
    ),
    "a pod that is not ready": (BLACK_BOX, "test_a_pod_that_is_not_ready_gets_nothing_and_comes_back"),
    "readiness that flaps": (
        f"{HERE}/test_membership.py",
        "test_readiness_that_flaps_leaves_the_same_worker_with_its_blocks",
    ),
    "another uid at the same address": (
        BLACK_BOX,
        "test_another_pod_at_the_same_address_is_another_engine",
    ),
    "a deletion of the pod before": (
        f"{HERE}/test_reflector.py",
        "test_a_deletion_of_another_pod_of_that_name_is_none",
    ),
    "another role label": (
        f"{HERE}/test_membership.py",
        "test_a_label_gives_a_role_where_the_source_has_none",
    ),
    "active ports": (BLACK_BOX, "test_a_pool_is_followed_when_it_is_made_changed_and_deleted"),
    "a pool of 0 or 9 ports": (
        f"{HERE}/test_inference_pools.py",
        "test_other_pools_are_refused_with_the_reason",
    ),
    "a pool of 8 ports": (f"{HERE}/test_inference_pools.py", "test_a_pool_may_have_eight_ports_and_https"),
    "a port twice in a pool": (f"{HERE}/test_inference_pools.py", "test_a_pool_selects_pods_and_ports"),
    "a pool deleted and made again": (
        BLACK_BOX,
        "test_a_pool_is_followed_when_it_is_made_changed_and_deleted",
    ),
    "a definition (CRD) that is not there": (
        BLACK_BOX,
        "test_a_kind_that_is_not_served_costs_a_line_in_the_log",
    ),
    "a definition (CRD) deleted and made again": (
        f"{HERE}/test_watched_sources.py",
        "test_a_definition_that_is_deleted_and_made_again_takes_the_pool_along",
    ),
    "rules of a rewrite that cannot be used": (
        f"{HERE}/test_inference_objects.py",
        "test_a_rule_that_cannot_be_used_is_named_and_the_others_count",
    ),
    "objectives and rewrites that are not there": (
        f"{HERE}/test_pool_objects.py",
        "test_kinds_that_are_not_there_cost_a_line_in_the_log_and_come_later",
    ),
    "objectives and rewrites deleted": (
        "blackbox/test_pool_objects.py",
        "test_a_rewrite_chooses_the_model_and_ends_with_its_object",
    ),
    # connections
    "a watch cut within a line": (BLACK_BOX, "test_a_watch_that_is_cut_within_a_line_goes_on_where_it_was"),
    "a half-open connection": (f"{HERE}/test_client.py", "test_a_socket_notices_a_peer_that_is_gone"),
    "no answer": (f"{HERE}/test_client.py", "test_a_server_that_is_away_or_never_answers"),
    "a silent watch": (BLACK_BOX, "test_a_silent_watch_is_opened_again_at_the_same_version"),
    "an unreadable line": (BLACK_BOX, "test_an_unreadable_line_leads_to_a_list"),
    "an unreadable list": (f"{HERE}/test_watch.py", "test_an_unreadable_list_changes_nothing"),
    "a line over 4 MiB": (
        HOSTILE,
        "test_a_line_of_4_mib_is_read_and_a_longer_one_ends_the_watch_at_once",
    ),
    "any bytes in a line or a page": (
        HOSTILE,
        "test_any_bytes_in_a_line_or_a_page_are_read_or_refused",
    ),
    "any value in any place": (HOSTILE, "test_any_value_in_any_place_is_read_or_refused"),
    "a page over its bound": (f"{HERE}/test_client.py", "test_a_page_is_bounded"),
    "pages without end": (
        f"{HERE}/test_reflector.py",
        "test_a_list_without_end_pauses_and_begins_again",
    ),
    "more than 20,000 objects": (
        HOSTILE,
        "test_20_000_objects_are_followed_and_one_more_changes_nothing",
    ),
    # statuses
    "410 as a status or an event": (
        BLACK_BOX,
        "test_versions_that_are_too_old_lead_to_a_list_that_finds_deletions",
    ),
    "410 within the pages of a list": (
        f"{HERE}/test_reflector.py",
        "test_a_list_that_fails_within_its_pages_starts_over",
    ),
    "another error as an event": (f"{HERE}/test_watch.py", "test_an_error_event_ends_the_watch"),
    "403 after a restart": (BLACK_BOX, "test_rights_that_are_missing_for_a_while_change_nothing"),
    "429 with Retry-After": (f"{HERE}/test_reflector.py", "test_a_server_may_ask_for_a_pause"),
    "Retry-After of every status": (
        f"{HERE}/test_client.py",
        "test_refusals_have_status_words_and_the_pause_that_is_asked_for",
    ),
    "a token that was rotated": (BLACK_BOX, "test_a_rotated_token_is_read_again"),
    "an authority (CA) that was rotated": (
        f"{HERE}/test_client.py",
        "test_an_authority_that_is_not_trusted_and_then_is",
    ),
    "a version that went back": (
        f"{HERE}/test_reflector_property.py",
        "test_a_list_that_is_due_finds_what_the_version_of_a_backup_hides",
    ),
    "deletions without an event": (
        f"{HERE}/test_watch.py",
        "test_a_list_comes_again_after_its_interval_and_finds_deletions",
    ),
    "the API away for ten minutes": (
        f"{HERE}/test_reflector.py",
        "test_an_api_server_that_is_away_for_ten_minutes_changes_nothing",
    ),
    "the API away while a worker dies": (
        BLACK_BOX,
        "test_an_api_server_that_is_away_costs_no_request_even_if_a_worker_dies",
    ),
    "an empty list that is true": (BLACK_BOX, "test_pods_join_and_leave"),
    "a gateway that starts while the API refuses": (
        BLACK_BOX,
        "test_a_gateway_is_ready_once_its_workers_were_listed",
    ),
    "no list yet": (f"{HERE}/test_watched_sources.py", "test_nothing_is_known_before_the_first_list"),
}


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_test(fault: str) -> None:
    path, name = FAULTS[fault]
    assert name in names_in(path)
