"""What the guard goes by, made of the configuration and kept as new as its files are.

key file ──► Ring ──┐
secret ──► salts ───┼──► Guard ──► each request
JWKS ──► Jwt ───────┘
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gateway.config import Config
from gateway.config.secrets import read_key
from gateway.core.errors import ConfigError
from gateway.runtime.tasks import Tasks
from gateway.tenancy.admission.request_identity import header_names, trusted_peers
from gateway.tenancy.auth.admin_access import has_keys
from gateway.tenancy.auth.api_keys import Ring
from gateway.tenancy.auth.authenticator import Guard
from gateway.tenancy.auth.key_file import KeyFile
from gateway.tenancy.auth.tenant_salt import MIN_SECRET_CHARS, Salts

if TYPE_CHECKING:
    from gateway.routing.router import Router
    from gateway.tenancy.auth.jwks import Jwks
    from gateway.tenancy.auth.jwt import Jwt
    from gateway.tenancy.auth.salt_cost_observer import SaltWitness

log = logging.getLogger("kvgate.keys")

LOOK_INTERVAL_S = 1.0
"""Between two looks at the file."""

_NO_GROUPS: Mapping[str, str] = {}


class Keeper:
    """`guard` is None where it does not matter who asks."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        """Raises ConfigError."""
        check(config)
        self._salts = _salts(config)
        self._clock = clock
        self.file = KeyFile(config.key_file, self._salt_in) if config.key_file else None
        self.admin_file = KeyFile(config.admin_api_keys, _no_salt) if config.admin_api_keys else None
        self._warn_if_closed(config)
        self.witness: SaltWitness | None = None
        self.guard: Guard | None = None
        self.admin_guard: Guard | None = None
        self.jwt: Jwt | None = None
        self.jwks: Jwks | None = None
        if self.file or config.jwt_keys or self._salts:
            self.guard = guard = Guard(
                clock=clock,
                names=header_names(config),
                trusted=trusted_peers(config),
                salt_of=self._salt_of,
                passes_key=config.pass_client_key,
            )
            guard.set_ring(self.file.ring if self.file else None)
            if config.jwt_keys:
                self._take_tokens(config, guard)
        if self.admin_file:
            self.admin_guard = Guard(
                clock=clock, names=header_names(config), trusted=trusted_peers(config), salt_of=_no_salt
            )
            self.admin_guard.set_ring(self.admin_file.ring)

    def __repr__(self) -> str:
        return f"Keeper({self.guard!r})"

    def start(self, tasks: Tasks, router: "Router | None" = None) -> None:
        """Keep it new, until the tasks end; and count what salts cost of what a router decides."""
        if self._salts and router:
            from gateway.tenancy.auth.salt_cost_observer import (  # a supervisor does without
                SaltWitness,
                keep_counted,
            )

            self.witness = SaltWitness(router.fleet)
            router.witnesses.decided.append(self.witness.decided)
            tasks.start("count what salts cost", keep_counted(self.witness))
        if self.jwks and router:  # whoever asks a supervisor has a key
            tasks.start("fetch keys for tokens", self.jwks.keep())
        if self.file and self.guard:
            tasks.start("follow keys", self._follow(self.file, self.guard))
        if self.admin_file and self.admin_guard:
            tasks.start("follow admin keys", self._follow(self.admin_file, self.admin_guard))

    @property
    def admin_guards(self) -> list[Guard]:
        """Each knows keys that may have admin scope."""
        wanted = self.guard if self.guard and self.guard.wants_key else None
        return [guard for guard in (self.admin_guard, wanted) if guard]

    def _warn_if_closed(self, config: Config) -> None:
        files = [file for file in (self.file, self.admin_file) if file]
        if files and config.admin_key not in ("auto", "off") and not any(file.has_admin for file in files):
            log.warning(
                "admin_key is %s, and no key in %s has admin scope: %s",
                config.admin_key,
                " or ".join(file.path for file in files),
                "make one with `kvgate key new --tenant NAME --admin`",
            )

    def take(self, config: Config) -> None:
        """What is live of the configuration."""
        if self.guard:
            self.guard.believe(header_names(config), trusted_peers(config))

    async def reload(self) -> None:
        """Read the keys anew, whether they seem changed or not. Raises ConfigError, with nothing changed."""
        if self.admin_file and self.admin_guard:
            self._use(self.admin_guard, await asyncio.to_thread(self.admin_file.reload))
        if self.file and self.guard:
            self._use(self.guard, await asyncio.to_thread(self.file.reload))

    async def _follow(self, file: KeyFile, guard: Guard) -> None:
        """In a thread: it may lie on a network."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            if ring := await asyncio.to_thread(file.look):
                self._use(guard, ring)

    def _use(self, guard: Guard, ring: Ring) -> None:
        guard.set_ring(ring)
        if self.jwt:
            self.jwt.forget()  # the groups of their tenants

    def _take_tokens(self, config: Config, guard: Guard) -> None:
        """Raises ConfigError."""
        from gateway.tenancy.auth.jwks import Jwks  # and their libraries
        from gateway.tenancy.auth.jwt import DEFAULT_ALGORITHMS, Jwt

        for name, value in (("jwt_issuer", config.jwt_issuer), ("jwt_audience", config.jwt_audience)):
            if not value:
                raise ConfigError(f"jwt_keys: needs {name}, or tokens for others would be taken")
        self.jwt = Jwt(
            algorithms=config.jwt_algorithms or DEFAULT_ALGORITHMS,
            issuer=config.jwt_issuer,
            audience=config.jwt_audience,
            leeway_s=config.jwt_leeway_s,
            tenant_claim=config.jwt_tenant_claim,
            models_claim=config.jwt_models_claim,
            salt_of=self._salt_of,
            clock=self._clock,
        )
        self.jwks = Jwks(config.jwt_keys, self.jwt.use, refresh_s=config.jwt_refresh_s)
        self.jwt.want_keys = self.jwks.want
        guard.jwt = self.jwt.who

    def _salt_of(self, tenant: str) -> str | None:
        return self._salt_in(tenant, self.file.ring.groups if self.file else _NO_GROUPS)

    def _salt_in(self, tenant: str, groups: Mapping[str, str]) -> str | None:
        return self._salts.of(tenant, groups) if self._salts else None


def check(config: Config) -> None:
    """What goes together and what does not. Raises ConfigError."""
    if config.admin_key in ("changes", "all") and not has_keys(config):
        raise ConfigError("admin_key: needs admin_api_keys or key_file, with a key that has admin scope")
    if config.mask_cached_tokens and config.expose_headers:
        raise ConfigError("mask_cached_tokens: expose_headers tells clients what it hides; choose one")


def _no_salt(tenant: str, groups: Mapping[str, str] | None = None) -> None:
    """Keys of admins send no prompts."""


def _salts(config: Config) -> Salts | None:
    if not config.tenant_salt:
        return None
    if not config.tenant_salt_file:
        raise ConfigError("tenant_salt: needs tenant_salt_file; make one with `openssl rand -hex 32`")
    secret = read_key(config.tenant_salt_file, "tenant_salt_file")
    if len(secret) < MIN_SECRET_CHARS:
        raise ConfigError(
            f"tenant_salt_file: {config.tenant_salt_file} holds {len(secret)} characters, and a secret has "
            f"{MIN_SECRET_CHARS} or more; make one with `openssl rand -hex 32`"
        )
    return Salts(secret.encode())
