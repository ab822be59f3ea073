"""Credentials: the authenticators made from the configuration, kept in step with their files.

key file ──► KeyRing ─┐
secret ──► salts ─────┼──► Authenticator ──► each request
JWKS ──► JwtVerifier ─┘
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.config import Config
from gateway.config.auth import MODELS_CLAIM
from gateway.config.secrets import read_key
from gateway.core.errors import ConfigError
from gateway.runtime.tasks import Tasks
from gateway.tenancy.admission.request_identity import header_names, trusted_peers
from gateway.tenancy.auth.admin_access import has_keys
from gateway.tenancy.auth.authenticator import Authenticator
from gateway.tenancy.auth.key_file import KeyFile
from gateway.tenancy.auth.tenant_salt import MIN_SECRET_CHARS, Salts

if TYPE_CHECKING:
    from gateway.routing.router import Router
    from gateway.tenancy.auth.jwks import Jwks
    from gateway.tenancy.auth.jwt import JwtVerifier
    from gateway.tenancy.auth.salt_cost_observer import SaltCostObserver

log = logging.getLogger("kvgate.keys")

LOOK_INTERVAL_S = 1.0
"""Seconds between two checks of the key file."""

_NO_GROUPS: Mapping[str, str] = {}


class Credentials:
    """Authenticators of the data and the admin port; `authenticator` is None where no caller needs to be
    known."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        """Read the files of the configuration. Raises ConfigError."""
        check(config)
        self._salts = _salts(config)
        self._clock = clock
        self.file = KeyFile(config.auth.key_file, self._salt_in) if config.auth.key_file else None
        self.admin_file = KeyFile(config.admin.key_file, _no_salt) if config.admin.key_file else None
        self._warn_if_inaccessible(config)
        self.salt_observer: SaltCostObserver | None = None
        self.authenticator: Authenticator | None = None
        self.admin_authenticator: Authenticator | None = None
        self.jwt: JwtVerifier | None = None
        self.jwks: Jwks | None = None
        if self.file or config.jwt.keys or self._salts:
            self.authenticator = authenticator = Authenticator(
                clock=clock,
                names=header_names(config),
                trusted=trusted_peers(config),
                salt_of=self._salt_of,
                passes_key=config.auth.pass_client_key,
            )
            authenticator.set_ring(self.file.ring if self.file else None)
            if config.jwt.keys:
                self._take_tokens(config, authenticator)
        if self.admin_file:
            self.admin_authenticator = Authenticator(
                clock=clock, names=header_names(config), trusted=trusted_peers(config), salt_of=_no_salt
            )
            self.admin_authenticator.set_ring(self.admin_file.ring)

    def __repr__(self) -> str:
        return f"Credentials({self.authenticator!r})"

    def start(self, tasks: Tasks, router: "Router | None" = None) -> None:
        """Start the tasks that follow the files, and the count of the cost of salts for a router's
        decisions."""
        if self._salts and router:
            from gateway.tenancy.auth.salt_cost_observer import (  # not loaded in a supervisor
                SaltCostObserver,
                count_salt_cost,
            )

            self.salt_observer = SaltCostObserver(router.fleet)
            router.observers.decided.append(self.salt_observer.decided)
            tasks.start("count what salts cost", count_salt_cost(self.salt_observer))
        if self.jwks and router:  # requests to a supervisor have a key
            tasks.start("fetch keys for tokens", self.jwks.keep())
        if self.file and self.authenticator:
            tasks.start("follow keys", self._follow(self.file, self.authenticator))
        if self.admin_file and self.admin_authenticator:
            tasks.start("follow admin keys", self._follow(self.admin_file, self.admin_authenticator))

    @property
    def admin_authenticators(self) -> list[Authenticator]:
        """Authenticators that know keys which may have admin scope."""
        wanted = self.authenticator if self.authenticator and self.authenticator.wants_key else None
        return [authenticator for authenticator in (self.admin_authenticator, wanted) if authenticator]

    @property
    def files(self) -> Sequence[tuple[str, KeyFile]]:
        """The key files, each with the name of its option."""
        named = (("key_file", self.file), ("admin_key_file", self.admin_file))
        return [(name, file) for name, file in named if file]

    def _warn_if_inaccessible(self, config: Config) -> None:
        files = [file for _, file in self.files]
        if files and config.admin.auth not in ("auto", "off") and not any(file.has_admin for file in files):
            log.warning(
                "admin_auth is %s but no key in %s has admin scope: %s",
                config.admin.auth,
                " or ".join(file.path for file in files),
                "make one with `kvgate key new --tenant NAME --admin`",
            )

    def reconfigure(self, config: Config) -> None:
        """Apply the live options of a changed configuration."""
        if self.authenticator:
            self.authenticator.believe(header_names(config), trusted_peers(config))

    async def reload(self) -> None:
        """Reload the key files, even if they seem unchanged. Raises ConfigError, with nothing changed."""
        if self.admin_file and self.admin_authenticator:
            await self._reload(self.admin_file, self.admin_authenticator)
        if self.file and self.authenticator:
            await self._reload(self.file, self.authenticator)

    async def _reload(self, file: KeyFile, authenticator: Authenticator) -> None:
        try:
            await asyncio.to_thread(file.reload)
        finally:
            self._use(authenticator, file)

    async def _follow(self, file: KeyFile, authenticator: Authenticator) -> None:
        """Follow changes of a key file. Reads run in a thread: the file may lie on a network."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await asyncio.to_thread(file.look)
            self._use(authenticator, file)

    def _use(self, authenticator: Authenticator, file: KeyFile) -> None:
        authenticator.fault = file.fault
        if authenticator.ring is not file.ring:
            authenticator.set_ring(file.ring)
            if self.jwt:
                self.jwt.forget()  # the groups of their tenants may have changed

    def _take_tokens(self, config: Config, authenticator: Authenticator) -> None:
        """Accept JWTs. Raises ConfigError."""
        from gateway.tenancy.auth.jwks import Jwks  # with their libraries
        from gateway.tenancy.auth.jwt import DEFAULT_ALGORITHMS, JwtVerifier

        for name, value in (("jwt_issuer", config.jwt.issuer), ("jwt_audience", config.jwt.audience)):
            if not value:
                raise ConfigError(
                    f"jwt_keys: needs {name}; without it, tokens issued for other services would be accepted"
                )
        self.jwt = JwtVerifier(
            algorithms=config.jwt.algorithms or DEFAULT_ALGORITHMS,
            issuer=config.jwt.issuer,
            audience=config.jwt.audience,
            tenant_claim=config.jwt.tenant_claim,
            models_claim=config.jwt.models_claim,
            needs_models=config.jwt.models_claim != MODELS_CLAIM,
            salt_of=self._salt_of,
            clock=self._clock,
        )
        self.jwks = Jwks(config.jwt.keys, self.jwt.use, refresh_s=config.jwt.refresh_s)
        self.jwt.want_keys = self.jwks.want
        authenticator.jwt = self.jwt.caller

    def _salt_of(self, tenant: str) -> str | None:
        return self._salt_in(tenant, self.file.ring.groups if self.file else _NO_GROUPS)

    def _salt_in(self, tenant: str, groups: Mapping[str, str]) -> str | None:
        return self._salts.of(tenant, groups) if self._salts else None


def check(config: Config) -> None:
    """Check options that need or exclude each other. Raises ConfigError."""
    if config.admin.auth in ("changes", "all") and not has_keys(config):
        raise ConfigError("admin_auth: needs admin_key_file or key_file, with a key that has admin scope")
    if config.auth.mask_cached_tokens and config.headers.expose_headers:
        raise ConfigError("mask_cached_tokens: expose_headers discloses the hidden counts; choose one")


def _no_salt(tenant: str, groups: Mapping[str, str] | None = None) -> None:
    """Stand-in for tenants' salts with admin keys, which send no prompts."""


def _salts(config: Config) -> Salts | None:
    if not config.auth.tenant_salt_file:
        return None
    secret = read_key(config.auth.tenant_salt_file, "tenant_salt_file")
    if len(secret) < MIN_SECRET_CHARS:
        raise ConfigError(
            f"tenant_salt_file: {config.auth.tenant_salt_file} holds {len(secret)} characters, and a secret "
            f"has {MIN_SECRET_CHARS} or more; make one with `openssl rand -hex 32`"
        )
    return Salts(secret.encode())
