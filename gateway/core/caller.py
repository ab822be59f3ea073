"""Caller of a request after authentication: tenant, allowed models, cache salt."""

from collections.abc import Collection, Mapping

from mypy_extensions import mypyc_attr

from gateway.core.errors import Forbidden
from gateway.core.worker import ServedModel


@mypyc_attr(acyclic=True)
class Caller:
    """Authenticated caller: `name` of the key or token, which may be logged; no `models` means all. `salt`
    separates this tenant's cache (`tenancy/auth/tenant_salt.py`); None where it is shared."""

    __slots__ = ("tenant", "name", "models", "expires_s", "is_admin", "salt")

    def __init__(
        self,
        tenant: str,
        name: str = "",
        models: Collection[str] | None = None,
        expires_s: float = 0.0,
        is_admin: bool = False,
        salt: str | None = None,
    ) -> None:
        """Create a caller; `expires_s` is in seconds since 1970, 0: never."""
        self.tenant = tenant
        self.name = name
        self.models = frozenset(models) if models else None
        self.expires_s = expires_s
        self.is_admin = is_admin
        self.salt = salt

    def __repr__(self) -> str:
        return f"Caller({self.tenant!r}, {self.name!r}, admin={self.is_admin})"

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models

    def check(self, model: str) -> None:
        """Raise Forbidden for a model that is not allowed, without revealing whether it exists."""
        if self.models is not None and model not in self.models:
            allowed = ", ".join(sorted(self.models))
            raise Forbidden(
                f"key '{self.name}' may not use the model '{model}', only {allowed}",
                code="model_not_allowed",
                param="model",
            )


def usable(caller: Caller | None, served: Mapping[str, ServedModel]) -> Mapping[str, ServedModel]:
    """Return the served models that a caller may use; all without authentication."""
    if caller is None or caller.models is None:
        return served
    return {name: one for name, one in served.items() if caller.may_use(name)}
