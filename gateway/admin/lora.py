"""/admin/adapters: which there are; load one on workers, and unload it."""

from collections.abc import Sequence

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admin.workers import as_error, as_json
from gateway.core.decode_errors import UNREADABLE
from gateway.discovery.lora_loading import AdapterLoader, AdapterRequestError, EndpointResult

OFF = "loading and unloading adapters is off; start the gateway with --admin-load-adapters"


class _AdapterRequest(msgspec.Struct, forbid_unknown_fields=True):
    adapter: str
    path: str
    model: str | None = None
    workers: list[str] = []


class AdapterAdmin:
    """Handlers of the endpoints for adapters; without `is_on` only GET is accepted."""

    def __init__(self, loading: AdapterLoader, *, is_on: bool) -> None:
        self._loading = loading
        self._is_on = is_on

    def handlers(self) -> dict[str, Handler]:
        return {
            "adapters": self._show,
            "load_adapter": self._load,
            "refresh_adapters": self._refresh,
            "unload_adapter": self._unload,
        }

    async def _show(self, request: web.Request) -> web.Response:
        return as_json({"adapters": self._loading.describe()})

    async def _load(self, request: web.Request) -> web.Response:
        """Load an adapter; takes JSON only, which a page in an operator's browser cannot send unasked."""
        if not self._is_on:
            return as_error(403, OFF)
        if request.content_type != "application/json":
            return as_error(
                415, 'send a body of type application/json, such as {"adapter": "a", "path": "/adapters/a"}'
            )
        try:
            wanted = msgspec.json.decode(await request.read(), type=_AdapterRequest)
        except UNREADABLE as exc:
            return as_error(400, str(exc))
        try:
            asked = await self._loading.load(wanted.adapter, wanted.path, wanted.model, wanted.workers)
        except AdapterRequestError as exc:
            return as_error(exc.status, str(exc))
        return _result(wanted.adapter, asked)

    async def _unload(self, request: web.Request) -> web.Response:
        """Unload an adapter from the workers named by `?worker=`, or from all of `?model=`."""
        if not self._is_on:
            return as_error(403, OFF)
        name, query = request.match_info["name"], request.query
        if unknown := query.keys() - {"worker", "model"}:
            return as_error(400, f"unknown parameter ?{min(unknown)}=; known: ?worker= and ?model=")
        try:
            asked = await self._loading.unload(name, query.get("model"), query.getall("worker", []))
        except AdapterRequestError as exc:
            return as_error(exc.status, str(exc))
        return _result(name, asked)

    async def _refresh(self, request: web.Request) -> web.Response:
        """Refresh the workers' names at once, after a change at a worker by other means."""
        if request.content_type != "application/json":
            return as_error(415, "send a body of type application/json, such as {}")
        await self._loading.refresh()
        return await self._show(request)


def _result(name: str, asked: Sequence[EndpointResult]) -> web.Response:
    """Answer with the result of each worker: 502 unless all succeeded."""
    failed = [each for each in asked if not each.is_done]
    result: dict[str, object] = {"adapter": name, "workers": asked}
    if failed:
        failures = "; ".join(f"{each.url}: {each.message}" for each in failed)
        result["error"] = {"message": f"{len(failed)} of {len(asked)} workers failed: {failures}"}
    return as_json(result, 502 if failed else 200)
