"""Authentication of each request by its API key or JWT, where keys or salts are configured.

    Authorization: Bearer KEY  ─┐                  ┌─► Caller: tenant, models, salt; the key goes no further
    x-api-key: KEY             ─┴─► file, or JWT ──┴─► 401 missing, unknown, expired; 403 of another tenant

Each credential of a request is checked: clients send the key of another service beside ours. A valid one
admits, whatever stands beside it; valid ones of two tenants do not say for which the request is, and are 403.

Where no keys are configured but tenants' caches are kept apart, the tenant is the one of admission control:
declared by a trusted client, else named after the key that goes to the worker.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from gateway.core.caller import Caller
from gateway.core.errors import Forbidden, OutdatedKeys, Unauthorized
from gateway.http.messages import Header, HttpRequest
from gateway.http.networks import Trusted
from gateway.tenancy.admission.request_identity import HeaderNames, declared_identity, tenant_of_key
from gateway.tenancy.auth.api_keys import KeyRing

MAX_UNAUTHENTICATED: Final = 4096
"""Cached salts of unauthenticated tenants."""

MAX_SHOWN: Final = 4
"""Different credentials that one request may show: each costs a hash, or the check of a signature."""

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
        declared: list[bytes] = []
        kept: list[Header] = []
        for header in http.headers:
            name = header[0]
            if name != b"authorization" and name != b"x-api-key":
                if name == self._names.tenant:
                    declared.append(header[1])
                kept.append(header)
        shown = credentials_of(http.headers)
        if not self._passes_key:
            http.headers = kept
        caller = self.caller(shown)
        for value in declared:
            if value.decode("utf-8", "replace").strip() != caller.tenant:
                message = (
                    f"key '{caller.name}' belongs to tenant '{caller.tenant}', but the request names another"
                )
                raise self._refused(Forbidden(message, code="tenant_mismatch"))
        return caller

    def caller(self, shown: Sequence[bytes]) -> Caller:
        """Caller of the credentials that a request shows: of the first valid one, with the models of all.
        Raises Unauthorized without a valid one, Forbidden for valid ones of different tenants."""
        callers = self._callers(shown)
        return callers[0] if len(callers) == 1 else _joined(callers)

    def _callers(self, shown: Sequence[bytes]) -> list[Caller]:
        """Callers of all valid credentials, which are of one tenant; at least one."""
        if len(shown) > MAX_SHOWN:
            message = f"the request has over {MAX_SHOWN} credentials; send one"
            raise self._refused(Unauthorized(message, code="too_many_credentials"))
        callers: list[Caller] = []
        errors: list[Unauthorized] = []
        for credential in shown:
            try:
                callers.append(self._caller_of(credential))
            except Unauthorized as error:
                errors.append(error)
        if not callers:
            raise self._refused(_telling(errors))
        for other in callers[1:]:
            if other.tenant != callers[0].tenant:
                message = "the request has valid credentials of two tenants; send one"
                raise self._refused(Forbidden(message, code="ambiguous_credentials"))
        return callers

    def _caller_of(self, credential: bytes) -> Caller:
        """Caller of one credential. Raises Unauthorized."""
        if self.jwt is not None and credential.count(b".") == 2:
            return self.jwt(credential)
        caller = self.ring.find(credential) if self.ring is not None else None
        if caller is None:
            raise Unauthorized("unknown API key", code="invalid_api_key")
        return self._unexpired(caller)

    def _unexpired(self, caller: Caller) -> Caller:
        if caller.expires_s and caller.expires_s <= self._clock():
            when = datetime.fromtimestamp(caller.expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            message = f"the API key '{caller.name}' expired on {when}; ask for a new one"
            raise Unauthorized(message, code="expired_api_key")
        return caller

    def check_admin(self, shown: Sequence[bytes], changes: bool = False) -> Caller:
        """Authenticate a request to the admin API by the credentials that it shows; one that changes
        something needs keys that are not outdated. Raises Unauthorized, Forbidden or OutdatedKeys."""
        callers = self._callers(shown)
        return self._admin(next((each for each in callers if each.is_admin), callers[0]), changes)

    def check_admin_again(self, name: str, changes: bool = False) -> Caller:
        """Check the key that a session began with: it may have expired, or left the file. Raises
        Unauthorized, Forbidden or OutdatedKeys."""
        entry = self.ring.entries.get(name.encode()) if self.ring is not None else None
        if entry is None or entry.caller is None:
            raise self._refused(Unauthorized("unknown API key", code="invalid_api_key"))
        try:
            caller = self._unexpired(entry.caller)
        except Unauthorized as error:
            raise self._refused(error) from None
        return self._admin(caller, changes)

    def _admin(self, caller: Caller, changes: bool) -> Caller:
        if not caller.is_admin:
            message = f"key '{caller.name}' has no admin scope; use a key with admin scope"
            raise self._refused(Forbidden(message, code="admin_scope_required"))
        if changes and self.fault is not None:
            raise OutdatedKeys(
                f"key '{caller.name}' may be revoked, since its key file is unusable: {self.fault}; it can "
                "read, and change something only once the file is usable again"
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


def credentials_of(headers: Iterable[Header]) -> list[bytes]:
    """Different credentials that a request shows, those of Authorization first. Schemes other than Bearer and
    empty values are none: they belong to proxies before us, or to nothing."""
    bearers: list[bytes] = []
    keys: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            if value[:7].lower() == b"bearer ":
                bearers.append(value[7:].strip())
        elif name == b"x-api-key":
            keys.append(value.strip())
    shown: list[bytes] = []
    for credential in bearers + keys:
        if credential and credential not in shown:
            shown.append(credential)
    return shown


def _joined(callers: Sequence[Caller]) -> Caller:
    """Return the first of one tenant's callers, which may use the models of each of them."""
    first = callers[0]
    if first.models is None:
        return first
    models: set[str] | None = set()
    for caller in callers:
        models = None if models is None or caller.models is None else models | caller.models
    return Caller(first.tenant, first.name, models, first.expires_s, first.is_admin, first.salt)


def _telling(errors: Sequence[Unauthorized]) -> Unauthorized:
    """Error to answer with: that of a credential which was ours once says more than that of a foreign one."""
    if not errors:
        message = "API key missing; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
        return Unauthorized(message, code="missing_api_key")
    return next((error for error in errors if error.code.startswith("expired")), errors[0])
