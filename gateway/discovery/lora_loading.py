"""Loading and unloading of adapters (LoRA) on workers.

A request is checked against the whole fleet before any worker is asked; then all are asked at once, and each
result is returned. Nothing is rolled back if only some succeed: the client sees which, and repeats. A worker
that has the adapter already counts as success.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from gateway.core.engine import Engine
from gateway.core.fleet import Fleet
from gateway.core.worker import ServedModel
from gateway.discovery.endpoint import Endpoint
from gateway.discovery.lora_wire import AdapterCallResult, check_name, load_body, outcome, unload_body
from gateway.discovery.roster import Roster
from gateway.upstream.control_client import MAX_POSTED_BYTES, ControlSession, failure, read_all

log = logging.getLogger("kvgate.adapters")

DOUBTS = {
    False: "; but it does not list it: is there more than one API server behind this address?",
    True: "; but it still lists it: is there more than one API server behind this address?",
}


class AdapterRequestError(Exception):
    """Request that cannot be executed; no worker was asked."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class EndpointResult:
    """Result at one endpoint, and whether it lists the adapter now."""

    url: str
    is_done: bool
    is_listed: bool
    message: str


class AdapterLoader:
    def __init__(
        self,
        fleet: Fleet,
        roster: Roster,
        engine_of: Callable[[str], Engine],
        session: ControlSession,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        self._fleet = fleet
        self._roster = roster
        self._engine_of = engine_of
        self._session = session
        self._headers = headers
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._turn = asyncio.Lock()

    def describe(self) -> list[dict[str, object]]:
        """Return every adapter with its base's root, the endpoints that list it, and those that get no
        requests for it."""
        listed: dict[tuple[str, str], list[str]] = {}
        unusable: dict[tuple[str, str], list[str]] = {}
        for endpoint in self._roster:
            for served in _served(endpoint):
                if served.adapter:
                    listed.setdefault((served.adapter, served.root), []).append(endpoint.url)
            for each in self._fleet.unusable(endpoint.workers[0].id) if endpoint.workers else ():
                if each.served.adapter:
                    key = each.served.adapter, each.served.root
                    unusable.setdefault(key, []).append(endpoint.url)
        return [
            {"name": key[0], "root": key[1], "workers": urls, "unusable_at": unusable.get(key, [])}
            for key, urls in sorted(listed.items())
        ]

    async def load(
        self, name: str, path: str, model: str | None, workers: Sequence[str]
    ) -> list[EndpointResult]:
        """Load an adapter on the named workers, or on all that serve the model (which may be omitted if there
        is only one). Raises AdapterRequestError."""
        try:
            check_name(name), check_name(path, "path")
        except ValueError as exc:
            raise AdapterRequestError(400, str(exc)) from exc
        async with self._turn:
            await self.refresh()
            chosen = self._chosen(model, workers)
            self._check_free(name, {served.root for each in chosen for served in _bases(each)})

            async def ask(endpoint: Endpoint) -> AdapterCallResult:
                known = _found(endpoint, name)
                if known == path:
                    return AdapterCallResult(True, "already loaded")
                if known is not None:
                    return AdapterCallResult(
                        False, f"another adapter has this name (from {known}); unload it first"
                    )
                return await self._call(endpoint, name, load_body(name, path))

            return await self._ask_all("load", name, chosen, ask)

    async def unload(self, name: str, model: str | None, workers: Sequence[str]) -> list[EndpointResult]:
        """Unload an adapter from the named workers, or from all that list it. Raises AdapterRequestError."""
        async with self._turn:
            await self.refresh()
            some = self._named(workers) if workers else list(self._roster)
            chosen = [each for each in some if any(served.adapter == name for served in _served(each))]
            if model is not None:
                root = self._root_of(model)
                chosen = [each for each in chosen if any(s.root == root for s in _served(each))]
            if not chosen:
                where = ", ".join(each.url for each in some) if workers else "any worker"
                raise AdapterRequestError(404, f"no adapter '{name}' at {where}")
            return await self._ask_all(
                "unload", name, chosen, lambda each: self._call(each, name, unload_body(name))
            )

    async def refresh(self) -> None:
        """Request the model names of all endpoints that have joined."""
        await asyncio.gather(*(self._roster.ask_names(each) for each in self._roster))

    # choice of workers -------------------------------------------------------------------------

    def _chosen(self, model: str | None, workers: Sequence[str]) -> list[Endpoint]:
        some = self._named(workers) if workers else [each for each in self._roster if each.workers]
        if model is None:
            roots = sorted({served.root for each in some for served in _bases(each)})
            if len(roots) > 1:
                raise AdapterRequestError(400, f"model: required, one of: {', '.join(roots)}")
            if not some:
                raise AdapterRequestError(404, "no worker has joined")
            return some
        root = self._root_of(model)
        chosen = [each for each in some if any(served.root == root for served in _bases(each))]
        if workers and (others := [each.url for each in some if each not in chosen]):
            raise AdapterRequestError(400, f"model: '{model}' is not served by {', '.join(others)}")
        return chosen

    def _named(self, workers: Sequence[str]) -> list[Endpoint]:
        found: dict[str, Endpoint] = {}
        unknown = []
        for name in workers:
            if endpoint := self._roster.find(name.rstrip("/")):
                found[endpoint.url] = endpoint
            else:
                unknown.append(name)
        if unknown:
            names = ", ".join(f"'{name}'" for name in unknown)
            raise AdapterRequestError(404, f"no worker {names}; use its URL or its id. No worker was asked")
        if waiting := [each.url for each in found.values() if not each.workers]:
            raise AdapterRequestError(409, f"{', '.join(waiting)} has not joined yet. No worker was asked")
        return list(found.values())

    def _root_of(self, model: str) -> str:
        target = self._fleet.aliases.get(model, model)
        for endpoint in self._roster:
            for served in _bases(endpoint):
                if target in (served.name, served.root):
                    return served.root
        known = sorted({served.name for each in self._roster for served in _bases(each)})
        raise AdapterRequestError(
            404, f"model: no worker serves '{model}'; known: {', '.join(known) or 'none'}"
        )

    def _check_free(self, name: str, roots: set[str]) -> None:
        """Check that a name has one meaning in the fleet, since its requests go to all workers that
        list it."""
        if name in self._fleet.aliases:
            raise AdapterRequestError(409, f"adapter: '{name}' is an alias of a model here")
        for endpoint in self._roster:
            for served in _served(endpoint):
                if served.name == name and served.adapter is None:
                    raise AdapterRequestError(409, f"adapter: '{name}' is a model of {endpoint.url}")
                if served.name == name and served.root not in roots:
                    raise AdapterRequestError(
                        409, f"adapter: '{name}' is one of {served.root} at {endpoint.url}"
                    )

    # calls -------------------------------------------------------------------------------------

    async def _ask_all(
        self,
        what: str,
        name: str,
        chosen: Sequence[Endpoint],
        ask: Callable[[Endpoint], Awaitable[AdapterCallResult]],
    ) -> list[EndpointResult]:
        async def one(endpoint: Endpoint) -> EndpointResult:
            result = await ask(endpoint)
            await self._roster.ask_names(endpoint)
            is_listed = any(served.adapter == name for served in _served(endpoint))
            doubt = DOUBTS[is_listed] if result.is_done and is_listed is not (what == "load") else ""
            level = logging.INFO if result.is_done and not doubt else logging.WARNING
            log.log(level, "%s adapter %s at %s: %s", what, name, endpoint.url, result.message + doubt)
            return EndpointResult(endpoint.url, result.is_done, is_listed, result.message + doubt)

        return list(await asyncio.gather(*map(one, chosen)))

    async def _call(self, endpoint: Endpoint, name: str, body: Mapping[str, str]) -> AdapterCallResult:
        assert endpoint.facts is not None, "it has joined"
        engine = self._engine_of(endpoint.facts.engine)
        calls = engine.adapters
        if calls is None:
            return AdapterCallResult(False, f"{engine.name} loads no adapters at run time")
        path = calls.load if "lora_path" in body else calls.unload
        try:
            async with self._session.call(
                "POST",
                endpoint.url,
                path,
                data=msgspec.json.encode(body),
                headers={**self._headers, "content-type": "application/json"},
                timeout=self._timeout,
            ) as answer:
                return outcome(answer.status, await read_all(answer, MAX_POSTED_BYTES), path, calls)
        except TimeoutError:
            return AdapterCallResult(False, f"no answer to {path} within {self._timeout.total:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return AdapterCallResult(False, f"{path}: {failure(exc)}")


def _served(endpoint: Endpoint) -> tuple[ServedModel, ...]:
    return endpoint.workers[0].served if endpoint.workers else ()


def _bases(endpoint: Endpoint) -> list[ServedModel]:
    return [served for served in _served(endpoint) if served.adapter is None]


def _found(endpoint: Endpoint, name: str) -> str | None:
    """Return the source of a loaded adapter of this name, if reported."""
    models = endpoint.facts.models if endpoint.facts else ()
    return next((model.root for model in models if model.id == name and model.parent), None)
