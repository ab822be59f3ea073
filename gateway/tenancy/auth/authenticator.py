"""Authentication of each request by its API key or JWT, where keys or salts are configured.

    Authorization: Bearer KEY  ─┐                  ┌─► Caller: tenant, models, salt; the key goes no further
    x-api-key: KEY             ─┴─► file, or JWT ──┴─► 401 missing, unknown, expired; 403 of another tenant

Where no keys are configured but tenants' caches are kept apart, the tenant is the one of admission control:
declared by a trusted client, else named after the key that goes to the worker.
"""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from gateway.core.errors import Forbidden, OutdatedKeys, Unauthorized
from gateway.core.requests.caller import Caller
from gateway.http.messages import Header, HttpRequest
from gateway.http.networks import Trusted
from gateway.tenancy.admission.request_identity import HeaderNames, declared_identity, tenant_of_key
from gateway.tenancy.auth.api_keys import KeyRing

MAX_UNAUTHENTICATED: Final = 4096
"""Cached salts of unauthenticated tenants."""

SaltOf = Callable[[str], str | None]

Verify = Callable[[bytes], Caller]
"""Returns the caller of a JWT, or raises Unauthorized."""


class Authenticator:
    """Authenticates requests by API key or JWT. `ring` is None without a key file; `clock` is seconds since
    1970."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        names: HeaderNames,
        trusted: Trusted,
        salt_of: SaltOf,
        passes_key: bool = False,
    ) -> None:
        self.ring: KeyRing | None = None
        self.fault: str | None = None
        """Why the key file may have other keys by now; None while it can be read."""
        self.jwt: Verify | None = None
        self.refusals: Counter[str] = Counter()
        self._clock = clock
        self._names = names
        self._trusted = trusted
        self._salt_of = salt_of
        self._passes_key = passes_key
        self._unauthenticated: dict[str, Caller] = {}

    def __repr__(self) -> str:
        return f"Authenticator({self.ring!r}, jwt={self.jwt is not None}, refusals={dict(self.refusals)})"

    @property
    def wants_key(self) -> bool:
        return self.ring is not None or self.jwt is not None

    @property
    def asks_peer(self) -> bool:
        """True if the client's address matters."""
        return not self.wants_key and bool(self._trusted)

    def believe(self, names: HeaderNames, trusted: Trusted) -> None:
        """Replace the identity headers and the networks that may send them."""
        self._names, self._trusted = names, trusted

    def set_ring(self, ring: KeyRing | None) -> None:
        self.ring = ring
        self._unauthenticated.clear()

    def ask(self, http: HttpRequest, peer: str | None) -> Caller:
        """Authenticate a request. Its credentials are removed from the headers, so that they reach neither a
        worker nor a log. Raises Unauthorized or Forbidden."""
        if self.ring is None and self.jwt is None:
            return self._unauthenticated_caller(http, peer)
        bearer: bytes | None = None
        key: bytes | None = None
        declared: bytes | None = None
        kept: list[Header] = []
        for header in http.headers:
            name = header[0]
            if name == b"authorization":
                bearer = header[1]
            elif name == b"x-api-key":
                key = header[1]
            else:
                if name == self._names.tenant:
                    declared = header[1]
                kept.append(header)
        if not self._passes_key:
            http.headers = kept
        caller = self.caller(bearer, key)
        if declared is not None and declared.decode("utf-8", "replace").strip() != caller.tenant:
            raise self._refused(
                Forbidden(
                    f"key '{caller.name}' belongs to tenant '{caller.tenant}', but the request names another",
                    code="tenant_mismatch",
                )
            )
        return caller

    def caller(self, authorization: bytes | None, api_key: bytes | None) -> Caller:
        """Caller of the two headers' values. Raises Unauthorized."""
        shown = api_key
        if authorization is not None and authorization[:7].lower() == b"bearer ":
            shown = authorization[7:].strip()
        if not shown:
            raise self._refused(
                Unauthorized(
                    "API key missing; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                    code="missing_api_key",
                )
            )
        if self.jwt is not None and shown.count(b".") == 2:
            try:
                return self.jwt(shown)
            except Unauthorized as error:
                raise self._refused(error) from None
        caller = self.ring.find(shown) if self.ring is not None else None
        if caller is None:
            raise self._refused(Unauthorized("unknown API key", code="invalid_api_key"))
        return self._unexpired(caller)

    def _unexpired(self, caller: Caller) -> Caller:
        if caller.expires_s and caller.expires_s <= self._clock():
            when = datetime.fromtimestamp(caller.expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            message = f"the API key '{caller.name}' expired on {when}; ask for a new one"
            raise self._refused(Unauthorized(message, code="expired_api_key"))
        return caller

    def check_admin(
        self, authorization: bytes | None, api_key: bytes | None, changes: bool = False
    ) -> Caller:
        """Authenticate a request to the admin API; one that changes something needs keys that are not
        outdated. Raises Unauthorized, Forbidden or OutdatedKeys."""
        return self._admin(self.caller(authorization, api_key), changes)

    def check_admin_again(self, name: str, changes: bool = False) -> Caller:
        """Check the key that a session began with: it may have expired, or left the file. Raises
        Unauthorized, Forbidden or OutdatedKeys."""
        entry = self.ring.entries.get(name.encode()) if self.ring is not None else None
        if entry is None or entry.caller is None:
            raise self._refused(Unauthorized("unknown API key", code="invalid_api_key"))
        return self._admin(self._unexpired(entry.caller), changes)

    def _admin(self, caller: Caller, changes: bool) -> Caller:
        if not caller.is_admin:
            message = f"key '{caller.name}' has no admin scope; use a key with admin scope"
            raise self._refused(Forbidden(message, code="admin_scope_required"))
        if changes and self.fault is not None:
            raise OutdatedKeys(
                f"key '{caller.name}' may be revoked already, since its key file is unusable: {self.fault}; "
                "reads go on, and changes once the file can be used again"
            )
        return caller

    def _unauthenticated_caller(self, http: HttpRequest, peer: str | None) -> Caller:
        declared = declared_identity(http.headers, self._names) if self._trusted.trusts(peer) else None
        tenant = (declared.tenant if declared else None) or tenant_of_key(http.headers)
        caller = self._unauthenticated.get(tenant)
        if caller is None:
            if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
                self._unauthenticated.clear()
            caller = self._unauthenticated[tenant] = Caller(tenant, salt=self._salt_of(tenant))
        return caller

    def _refused(self, error: Unauthorized | Forbidden) -> Unauthorized | Forbidden:
        self.refusals[error.code] += 1
        return error
