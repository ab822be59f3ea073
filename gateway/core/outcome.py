"""Outcomes of requests that were sent to a worker."""

from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.usage import Usage

SERVER_ERROR: Final = 500
UNAVAILABLE: Final = 503
"""An engine that says so (dead inside, asleep, overloaded) has done nothing for the request yet."""
SATURATED: Final = "rejected the request because it is saturated"
"""The reason of an attempt at a worker that takes no more requests for now; the worker is well."""
UNLOADED: Final = "answered 404, as if it had unloaded the adapter"
"""The reason reported for a worker's 404 to a LoRA adapter: the adapter is gone, the worker is well."""
CLIENT_GONE: Final = 499
"""The status of a request with a disconnected client (nginx's number for it)."""


@mypyc_attr(acyclic=True)
class Outcome:
    """End of a request; `result` is "ended", "aborted", "failed" or "client_disconnected". `lasted_s` is from
    the request's arrival; None where it is not the end, but another worker is tried."""

    __slots__ = (
        "result",
        "status",
        "ttft_s",
        "lasted_s",
        "reported_prompt_tokens",
        "reported_cached_tokens",
        "reported_output_tokens",
    )

    def __init__(
        self,
        result: str,
        status: int,
        ttft_s: float | None,
        usage: Usage | None,
        lasted_s: float | None = None,
    ) -> None:
        self.result = result
        self.status = status
        self.ttft_s = ttft_s
        self.lasted_s = lasted_s
        self.reported_prompt_tokens = usage.prompt_tokens if usage else None
        self.reported_cached_tokens = usage.cached_tokens if usage else None
        self.reported_output_tokens = usage.completion_tokens if usage else None

    @property
    def is_error(self) -> bool:
        """Not one of the client's."""
        return self.result in ("aborted", "failed") or self.status >= SERVER_ERROR
