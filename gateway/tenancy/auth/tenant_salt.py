r"""Salts that keep tenants' caches apart: HMAC of the tenant with a secret, the same in each gateway that has
it.

An engine mixes `cache_salt` into the hash of a prompt's first block, so that prompts of two tenants have no
block in common however equal they are. Without the secret, another tenant's salt cannot be made; salts sent
by clients are replaced (`requests/parsing.py`).

A salt is 43 characters of base64url: vLLM takes 128 at most, and none of "@/\\" and NUL.
"""

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hmac import digest

MIN_SECRET_CHARS = 32


class Salts:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, tenant: str, groups: Mapping[str, str]) -> str:
        """Salt of a tenant, or of the group that it is in; a group's name never equals a tenant's."""
        group = groups.get(tenant)
        name = f"tenant:{tenant}" if group is None else f"group:{group}"
        raw = digest(self._secret, name.encode("utf-8", "surrogatepass"), "sha256")
        return urlsafe_b64encode(raw).rstrip(b"=").decode()
