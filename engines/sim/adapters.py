"""LoRA adapters loaded and unloaded at run time, as in vLLM 0.32; under SGLang's paths in its format. Any
path works except one that contains "missing"."""

from typing import Any

from aiohttp import web

from engines.sim.params import ApiError, decode_body
from engines.sim.server import SimEngine

MISSING = "missing"


class AdapterRoutes:
    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine

    def add_routes(self, app: web.Application) -> None:
        if self._engine.config.pd_protocol == "sglang":
            app.router.add_post("/load_lora_adapter", self.load_flat)
            app.router.add_post("/unload_lora_adapter", self.unload_flat)
        else:
            app.router.add_post("/v1/load_lora_adapter", self.load)
            app.router.add_post("/v1/unload_lora_adapter", self.unload)

    async def load(self, request: web.Request) -> web.Response:
        name = self._load(decode_body(await request.read()))
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        name = self._unload(decode_body(await request.read()))
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def load_flat(self, request: web.Request) -> web.Response:
        return self._flat(self._load, decode_body(await request.read()))

    async def unload_flat(self, request: web.Request) -> web.Response:
        return self._flat(self._unload, decode_body(await request.read()))

    def _flat(self, change: Any, body: dict[str, Any]) -> web.Response:
        error = None
        try:
            change(body)
        except ApiError as exc:
            error = str(exc)
        result = {"success": error is None, "error_message": error, "loaded_adapters": self._engine.adapters}
        return web.json_response(result, status=400 if error else 200)

    def _load(self, body: dict[str, Any]) -> str:
        adapters, name, path = self._engine.adapters, body.get("lora_name"), body.get("lora_path")
        if not name or not path:
            raise _invalid("Both 'lora_name' and 'lora_path' must be provided.")
        if name in self._engine.models and name not in adapters:
            raise _invalid(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in adapters and not body.get("load_inplace"):
            raise _invalid(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in "
                "place, set 'load_inplace' to True."
            )
        if MISSING in path:
            message = f"Loading lora {name} failed: No adapter found for {path}"
            raise ApiError(message, status=404, kind="NotFoundError")
        adapters[name] = path
        return str(name)

    def _unload(self, body: dict[str, Any]) -> str:
        name = body.get("lora_name")
        if name not in self._engine.adapters:
            message = f"The lora adapter '{name}' cannot be found."
            raise ApiError(message, status=404, kind="NotFoundError")
        del self._engine.adapters[name]
        return str(name)


def _invalid(message: str) -> ApiError:
    return ApiError(message, kind="InvalidUserInput")
