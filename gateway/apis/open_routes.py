"""Open routes: which paths go on to workers, and why the others do not.

    forwarded      inference (the table in `core/route_table.py`), responses that a worker keeps, and what
                   --route adds
    refused, 403   paths that change an engine for all its clients, or reveal it, unless --route adds them
    unknown, 404   everything else

From the sources of vLLM 0.32 and SGLang 0.5.9. Paths that can hand an engine transfer parameters where the
gateway does not look (`/inference/v1/generate`, `/vertex_generate`) are not among inference either.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gateway.core.errors import MethodNotAllowed, RouteForbidden, UnknownRoute
from gateway.core.route_table import CHAT, MODELS, OWN, ROUTES

Methods = tuple[str, ...]

CONTROL: Final = frozenset(
    path
    for line in """
    /v1/load_lora_adapter /v1/unload_lora_adapter /load_lora_adapter /unload_lora_adapter
    /load_lora_adapter_from_tensors
    /reset_prefix_cache /reset_mm_cache /reset_encoder_cache /flush_cache /clear_hicache_storage_backend
    /hicache/storage-backend /hicache/storage-backend/clear
    /sleep /wake_up /is_sleeping /release_kv_cache_memory /release_memory_occupation /resume_memory_occupation
    /pause /resume /is_paused /pause_generation /continue_generation /abort_requests /abort_request
    /collective_rpc /set_internal_state /configure_logging /freeze_gc /slow_down
    /init_weight_transfer_engine /shutdown_weight_transfer_engine /start_weight_update
    /start_draft_weight_update /update_weights /finish_weight_update /update_weight_version /weight_info
    /weight_checker /weights_checker /get_world_size /get_weights_by_name
    /update_weights_from_disk /update_weights_from_tensor /update_weights_from_distributed
    /update_weights_from_ipc /init_weights_update_group /destroy_weights_update_group
    /init_weights_send_group_for_remote_instance /send_weights_to_remote_instance
    /start_profile /stop_profile /start_expert_distribution_record /stop_expert_distribution_record
    /dump_expert_distribution_record
    /scale_elastic_ep /is_scaling_elastic_ep /fault_tolerance/apply /fault_tolerance/status
    /open_session /close_session
    /server_info /get_server_info /model_info /get_model_info /load /get_load /v1/loads
    /kv_event_sources /tokenizer_info /version
    /inference/v1/generate /vertex_generate
    """.splitlines()
    for path in line.split()
)
"""Paths that change an engine for all clients, reveal it, or steer it where the gateway does not look."""

_ENTRY: Final = re.compile(r"(?:(GET|POST|PUT|PATCH|DELETE) )?(/[!-~]*)")
_POST: Final[Methods] = ("POST",)


class Routes:
    """The open paths. `added` are paths, or a method and a path; `refused` paths are closed again. Raises
    ValueError for an entry that cannot be used."""

    def __init__(self, added: Iterable[str] = (), refused: Iterable[str] = ()) -> None:
        open_: dict[str, Methods] = dict.fromkeys(ROUTES, _POST)
        self._with_slash: set[str] = set()
        for entry in added:
            method, path = _read(entry)
            if entry.endswith("/") and path != "/":
                self._with_slash.add(path)
            known = () if path in ROUTES or path not in open_ else open_[path]
            open_[path] = (*known, *(each for each in [method] if each not in known))
        self._refused = frozenset(_read(entry)[1] for entry in refused)
        self._open: Mapping[str, Methods] = {
            path: methods for path, methods in open_.items() if path not in self._refused
        }

    def __repr__(self) -> str:
        return f"Routes({len(self._open)} open)"

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def __contains__(self, path: str) -> bool:
        return path in self._open

    def find(self, method: str, path: str) -> bool:
        """True for a path that goes on to a worker. Raises MethodNotAllowed."""
        methods = self._open.get(path)
        if methods is None:
            return False
        if method not in methods:
            allowed = ", ".join(methods)
            raise MethodNotAllowed(f"{path} accepts {allowed}, not {method}", param=allowed)
        return True

    def to_worker(self, path: str, target: bytes) -> bytes:
        """The target of a request for a worker: an added route keeps the last slash that it was added
        with."""
        if path not in self._with_slash:
            return target
        before, mark, query = target.partition(b"?")
        return before + b"/" + mark + query

    def why_not(self, path: str) -> UnknownRoute | RouteForbidden:
        """The error for a path that is not open."""
        if path in CONTROL:
            return RouteForbidden(f"{path} controls or reveals the engine, and is not open to clients")
        if path in self._refused:
            return RouteForbidden(f"{path} is disabled on this gateway; use another route")
        if path == "/metrics" or path.startswith("/admin"):
            return UnknownRoute(
                f"there is no route {path} on this port; metrics and admin are on the admin port"
            )
        return UnknownRoute(f"there is no route {path}; check the path, as in {CHAT} or {MODELS}")


def _read(entry: str) -> tuple[str, str]:
    found = _ENTRY.fullmatch(entry)
    if found is None or "?" in entry or "#" in entry:
        raise ValueError(f"'{entry}' is neither a path nor a method and a path, as in 'GET /load'")
    path = "/" + "/".join(part for part in found[2].split("/") if part)  # as requests are looked up
    if path in OWN:
        raise ValueError(f"{path} is served by the gateway itself")
    return found[1] or "POST", path
