"""Workers as they are written: "URL", "ROLE=URL", and those that drain, as gateways exchange them."""

from collections.abc import Sequence

from gateway.config import Config, replaced
from gateway.core.worker import Role
from gateway.http.address import worker_url


def specs_of(config: Config) -> list[str]:
    """Return the configured workers, each as "URL" or "ROLE=URL", which `parse_spec` reads."""
    return [
        *config.fleet.worker,
        *[f"{Role.PREFILL.value}={url}" for url in config.fleet.prefill],
        *[f"{Role.DECODE.value}={url}" for url in config.fleet.decode],
    ]


def spec_of(url: str, role: Role | None) -> str:
    return f"{role.value}={url}" if role else url


DRAINING, REMOVING = "draining=", "removing="
"""Before the URL of an endpoint: that it is to drain; and to be removed when it has nothing left."""


def drains_of(specs: Sequence[str]) -> list[tuple[str, bool]]:
    """Draining workers among the specs that one gateway hands to another: URL, and whether it is
    removed then."""
    marks = ((spec, mark) for spec in specs for mark in (DRAINING, REMOVING) if spec.startswith(mark))
    return [(spec.removeprefix(mark), mark is REMOVING) for spec, mark in marks]


def without_drains(specs: Sequence[str]) -> list[str]:
    return [spec for spec in specs if not spec.startswith((DRAINING, REMOVING))]


def changes_of(specs: Sequence[str]) -> list[tuple[str, dict[str, object]]]:
    """Return a gateway's added and draining workers as paths of the admin API with their bodies. Raises
    ValueError."""
    added = [(url, role.value if role else None) for url, role in map(parse_spec, without_drains(specs))]
    changes: list[tuple[str, dict[str, object]]]
    changes = [("/admin/workers", {"url": url, "role": role}) for url, role in added]
    changes += [(f"/admin/workers/{url}/drain", {"remove": is_last}) for url, is_last in drains_of(specs)]
    return changes


def parse_spec(spec: str) -> tuple[str, Role | None]:
    """Return the normal form of a worker's URL, and its role. Raises ValueError."""
    url, role = _parts(spec)
    return worker_url(url), role


def _parts(spec: str) -> tuple[str, Role | None]:
    for role in (Role.PREFILL, Role.DECODE):
        if spec.startswith(f"{role.value}="):
            return spec.removeprefix(f"{role.value}="), role
    return spec, None


def with_specs(config: Config, specs: Sequence[str]) -> Config:
    """Return the configuration with other workers in place of its own; a wrong one stays as it is."""
    given: dict[Role | None, list[str]] = {None: [], Role.PREFILL: [], Role.DECODE: []}
    for url, role in map(_parts, without_drains(specs)):
        given[role].append(url)
    return replaced(config, worker=given[None], prefill=given[Role.PREFILL], decode=given[Role.DECODE])
