"""The lines of a key file: one JSON object each, `#` begins a comment.

    {"id":"0b1c…","salt":"…","hash":"…","tenant":"acme","models":["m"],"expires":"2027-01-01","admin":true}
    {"id":"9d41…","find":"…", …}                            a key that was not made here (`kvgate key import`)
    {"group":"acme","tenants":["acme-dev","acme-prod"]}     tenants that may share a cache

A file is used as a whole or not at all; what is wrong is named by line and field.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from gateway.core.decoding import UNREADABLE
from gateway.core.errors import ConfigError
from gateway.http.caller import Who
from gateway.tenancy.auth.api_keys import (
    ID_DIGITS,
    NUM_FINDER_BYTES,
    NUM_SALT_BYTES,
    NUM_SECRET_BYTES,
    Entry,
    Ring,
    digest_of,
    finder_of,
    id_of,
)

MAX_TENANT_CHARS = 64
RESERVED = frozenset({"*", "(others)", "anonymous"})
"""Names that mean something else where tenants are configured."""

SaltOf = Callable[[str, Mapping[str, str]], str | None]
"""The cache salt of a tenant, by the groups that there are; None where caches are not kept apart."""


class KeyLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a file knows of a key."""

    id: str
    salt: str
    hash: str
    tenant: str
    models: list[str] = []
    expires: str = ""
    admin: bool = False
    find: str = ""


class GroupLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tenants that trust each other with the timing of their prompts."""

    group: str
    tenants: list[str]


def line_of(
    key: bytes,
    salt: bytes,
    tenant: str,
    models: Sequence[str] = (),
    expires: str = "",
    admin: bool = False,
    new_id: bytes = b"",
) -> str:
    """As it goes into the file; `new_id` is that of a key which has none of ours. Raises ValueError for what
    `ring_of` would refuse."""
    line = KeyLine(
        id=new_id.hex() or id_of(key).decode(),
        find=finder_of(key).hex() if new_id else "",
        salt=salt.hex(),
        hash=digest_of(key, salt).hex(),
        tenant=tenant,
        models=list(models),
        expires=expires,
        admin=admin,
    )
    _entry(line, lambda tenant, groups: None, {})
    return msgspec.json.encode(line).decode()


def ring_of(text: str, source: str, salt_of: SaltOf = lambda tenant, groups: None) -> Ring:
    """Of a file's text; `source` is named in the ConfigError that is raised for one that cannot be used."""
    keys: list[tuple[int, KeyLine]] = []
    groups: dict[str, str] = {}
    for number, line in _lines(text, source):
        try:
            if isinstance(line, GroupLine):
                _add_group(line, groups)
            else:
                keys.append((number, line))
        except ValueError as exc:
            raise _refused(source, number, exc) from exc
    entries: dict[bytes, Entry] = {}
    imported: dict[bytes, Entry] = {}
    for number, key in keys:
        try:
            entry = _entry(key, salt_of, groups)
            if entries.setdefault(key.id.encode(), entry) is not entry:
                raise ValueError(f"id: '{key.id}' is on an earlier line too")
            if key.find and imported.setdefault(_bytes("find", key.find), entry) is not entry:
                raise ValueError("find: this key is on an earlier line too")
        except ValueError as exc:
            raise _refused(source, number, exc) from exc
    return Ring(entries, groups, imported)


def expiry_s(text: str) -> float:
    """Seconds since 1970 of a date or time in ISO 8601, UTC unless it says otherwise; 0 of none. Raises
    ValueError."""
    if not text:
        return 0.0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise ValueError(f"expires: '{text}' is no date or time, as in 2027-01-31T12:00:00Z") from exc
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def check_tenant(name: str) -> str:
    """Raises ValueError."""
    if not name or name != name.strip() or not name.isprintable() or len(name) > MAX_TENANT_CHARS:
        raise ValueError(f"tenant: give a name of 1 to {MAX_TENANT_CHARS} printable characters")
    if name in RESERVED:
        raise ValueError(f"tenant: '{name}' means something else, take another name")
    return name


def _lines(text: str, source: str) -> Iterator[tuple[int, KeyLine | GroupLine]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not (line := line.strip()) or line.startswith("#"):
            continue
        try:
            fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            kind: type[KeyLine] | type[GroupLine] = GroupLine if "group" in fields else KeyLine
            known = msgspec.json.decode(line, type=kind)
        except UNREADABLE as exc:
            raise _refused(
                source, number, f"{exc}; `kvgate key new` prints lines as they are wanted"
            ) from exc
        if isinstance(known, KeyLine) and "models" in fields and not known.models:
            raise _refused(source, number, "models: list one or more, or leave the field out for all")
        yield number, known


def _refused(source: str, number: int, exc: object) -> ConfigError:
    reason = str(exc).replace("$.", "").replace("Object contains unknown field", "unknown field")
    return ConfigError(f"{source}:{number}: {reason.replace('Object missing', 'missing')}")


def _add_group(line: GroupLine, groups: dict[str, str]) -> None:
    for tenant in line.tenants:
        check_tenant(tenant)
        if groups.setdefault(tenant, line.group) != line.group:
            raise ValueError(f"tenants: '{tenant}' is in the group '{groups[tenant]}' too")


def _entry(line: KeyLine, salt_of: SaltOf, groups: Mapping[str, str]) -> Entry:
    if len(_bytes("id", line.id)) * 2 != ID_DIGITS or line.id != line.id.lower():
        raise ValueError(f"id: it has {ID_DIGITS} digits, in lower case")
    salt, digest = _bytes("salt", line.salt), _bytes("hash", line.hash)
    if len(salt) != NUM_SALT_BYTES or len(digest) != NUM_SECRET_BYTES:
        raise ValueError(f"salt and hash: they have {NUM_SALT_BYTES * 2} and {NUM_SECRET_BYTES * 2} digits")
    if line.find and len(_bytes("find", line.find)) != NUM_FINDER_BYTES:
        raise ValueError(f"find: it has {NUM_FINDER_BYTES * 2} digits")
    tenant, expires_s = check_tenant(line.tenant), expiry_s(line.expires)
    who = Who(tenant, line.id, line.models, expires_s, line.admin, salt_of(tenant, groups))
    return Entry(salt, digest, who)


def _bytes(field: str, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as exc:
        raise ValueError(f"{field}: it is not hexadecimal") from exc
