"""Names that options had before, by key: the new key, or the reason of the removal.

A configuration with an old name is rejected with the new one. Tables are as old as their names: before, the
keys of a file were those of flags, without tables.
"""

from collections.abc import Mapping

from gateway.config.options import Option
from gateway.config.reading import FILE, FLAG

RENAMED: Mapping[str, str] = {
    "ab": "policy_ab",
    "adapter_timeout_s": "admin_adapter_timeout_s",
    "admin_api_keys": "admin_key_file",
    "admin_key": "admin_auth",
    "assumed_keep_s": "events_assumed_keep_s",
    "hub": "tokenizer_hub",
    "load_adapters": "admin_load_adapters",
    "max_bodies_bytes": "body_memory_bytes",
    "max_in_flight_per_worker": "queue_above_in_flight",
    "max_queued": "queue_max_requests",
    "max_worker_blocks": "index_max_worker_blocks",
    "medium_worth": "policy_medium_worth",
    "offload_blocks": "index_offload_blocks",
    "place": "location",
    "prefill_timeout_s": "disaggregation_prefill_timeout_s",
    "probe_tokens": "tokenizer_probe",
    "refuse_route": "close_route",
    "replay_port": "events_replay_port",
    "shadow": "policy_shadow",
    "show_broken_text": "admin_show_prompt_text",
    "tls_handshake_timeout_s": "head_timeout_s",
    "tokenize_timeout_s": "tokenizer_timeout_s",
    "trace_sample_ratio": "otlp_sample_ratio",
    "verify": "usage_injection",
    "warm_up_s": "slow_start_s",
    "worker_socket_dirs": "worker_networks",
}
REMOVED: Mapping[str, str] = {
    "jwt_leeway_s": "clocks may differ by 30 s",
    "max_head_bytes": "a request's head may have 64 KiB",
    "prefill_tokens_per_s": "kvgate learns each worker's speed from its answers",
    "tenant_salt": "--tenant-salt-file alone turns salts on",
    "transfer_latency_s": "kvgate assumes 15 ms",
    "transfer_tokens_per_s": "kvgate learns the speed of transfers",
}


def old_name(key: str, form: str, known: Mapping[str, Option]) -> str:
    """Return a sentence about a key that is no option any more; empty if it never was one. `form` is where it
    was given (`FLAG`, `VARIABLE` or `FILE`)."""
    plain = key.removeprefix("no_") if form == FLAG else key
    given = _shown(key, form)
    if plain in REMOVED:
        return f"{given} was removed: {REMOVED[plain]}"
    if (option := known.get(RENAMED.get(plain, plain))) is None:
        return ""
    if form == FILE:
        return f"{given} is now {option.place}" if plain in RENAMED else ""
    if form == FLAG and option.is_rare:
        return f"{given} is now {option.place} of a file (--config), or {option.variable}"
    if plain not in RENAMED:
        return ""
    flag = f"--no-{option.flag[2:]}" if plain != key else option.flag
    return f"{given} is now {flag if form == FLAG else option.variable}"


def _shown(key: str, form: str) -> str:
    if form == FILE:
        return f"`{key}`"
    return "--" + key.replace("_", "-") if form == FLAG else f"KVGATE_{key.upper()}"
