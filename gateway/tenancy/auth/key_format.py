"""Format of a key file: one JSON object per line, `#` begins a comment.

    {"id":"0b1c…","salt":"…","hash":"…","tenant":"acme","models":["m"],"expires":"2027-01-01","admin":true}
    {"id":"9d41…","find":"…", …}                            an imported key (`kvgate key import`)
    {"group":"acme","tenants":["acme-dev","acme-prod"]}     tenants that may share a cache

A file is used as a whole or not at all; errors name the line and the field.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from gateway.core.caller import Caller
from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import ConfigError
from gateway.tenancy.auth.api_keys import (
    ID_DIGITS,
    NUM_FINDER_BYTES,
    NUM_SALT_BYTES,
    NUM_SECRET_BYTES,
    KeyEntry,
    KeyRing,
    digest_of,
    finder_of,
    id_of,
)

MAX_TENANT_CHARS = 64
RESERVED = frozenset({"*", "(others)", "anonymous"})
"""Reserved names of tenants, which have another meaning in the limits."""

SaltOf = Callable[[str, Mapping[str, str]], str | None]
"""Returns a tenant's cache salt, given the groups by tenant; None where caches are not kept apart."""


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Line of the key file that describes a key."""

    id: str
    salt: str
    hash: str
    tenant: str
    models: list[str] = []
    expires: str = ""
    admin: bool = False
    find: str = ""


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Line of the key file that lists tenants which may share a cache: they trust each other with prompt
    timing."""

    group: str
    tenants: list[str]


def format_key_record(
    key: bytes,
    salt: bytes,
    tenant: str,
    models: Sequence[str] = (),
    expires: str = "",
    admin: bool = False,
    new_id: bytes = b"",
) -> str:
    """Format a key as a line of the key file; `new_id` is the id of an imported key. Raises ValueError for
    values that `parse_key_file` would reject."""
    line = KeyRecord(
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


def parse_key_file(text: str, source: str, salt_of: SaltOf = lambda tenant, groups: None) -> KeyRing:
    """Parse the text of a key file; `source` is named in the ConfigError that is raised for an unusable
    one."""
    keys: list[tuple[int, KeyRecord]] = []
    groups: dict[str, str] = {}
    for number, line in _lines(text, source):
        try:
            if isinstance(line, GroupRecord):
                _add_group(line, groups)
            else:
                keys.append((number, line))
        except ValueError as exc:
            raise _refused(source, number, exc) from exc
    entries: dict[bytes, KeyEntry] = {}
    imported: dict[bytes, KeyEntry] = {}
    for number, key in keys:
        try:
            entry = _entry(key, salt_of, groups)
            if entries.setdefault(key.id.encode(), entry) is not entry:
                raise ValueError(f"id: '{key.id}' repeats an earlier line")
            if key.find and imported.setdefault(_bytes("find", key.find), entry) is not entry:
                raise ValueError("find: this key repeats an earlier line")
        except ValueError as exc:
            raise _refused(source, number, exc) from exc
    return KeyRing(entries, groups, imported)


def expiry_s(text: str) -> float:
    """Seconds since 1970 of a date or time in ISO 8601, UTC by default; 0 for an empty text. Raises
    ValueError."""
    if not text:
        return 0.0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise ValueError(f"expires: '{text}' is not a date or time such as 2027-01-31T12:00:00Z") from exc
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def check_tenant(name: str) -> str:
    """Check a tenant's name. Raises ValueError."""
    if not name or name != name.strip() or not name.isprintable() or len(name) > MAX_TENANT_CHARS:
        raise ValueError(f"tenant: give a name of 1 to {MAX_TENANT_CHARS} printable characters")
    if name in RESERVED:
        raise ValueError(f"tenant: '{name}' is reserved, choose another name")
    return name


def _lines(text: str, source: str) -> Iterator[tuple[int, KeyRecord | GroupRecord]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not (line := line.strip()) or line.startswith("#"):
            continue
        try:
            fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            kind: type[KeyRecord] | type[GroupRecord] = GroupRecord if "group" in fields else KeyRecord
            known = msgspec.json.decode(line, type=kind)
        except UNREADABLE as exc:
            raise _refused(source, number, f"{exc}; `kvgate key new` prints valid lines") from exc
        if isinstance(known, KeyRecord) and "models" in fields and not known.models:
            raise _refused(source, number, "models: list one or more, or leave the field out for all")
        yield number, known


def _refused(source: str, number: int, exc: object) -> ConfigError:
    reason = str(exc).replace("$.", "").replace("Object contains unknown field", "unknown field")
    return ConfigError(f"{source}:{number}: {reason.replace('Object missing', 'missing')}")


def _add_group(line: GroupRecord, groups: dict[str, str]) -> None:
    for tenant in line.tenants:
        check_tenant(tenant)
        if groups.setdefault(tenant, line.group) != line.group:
            raise ValueError(f"tenants: '{tenant}' is also in the group '{groups[tenant]}'")


def _entry(line: KeyRecord, salt_of: SaltOf, groups: Mapping[str, str]) -> KeyEntry:
    if len(_bytes("id", line.id)) * 2 != ID_DIGITS or line.id != line.id.lower():
        raise ValueError(f"id: give {ID_DIGITS} hexadecimal digits in lower case")
    salt, digest = _bytes("salt", line.salt), _bytes("hash", line.hash)
    if len(salt) != NUM_SALT_BYTES or len(digest) != NUM_SECRET_BYTES:
        raise ValueError(f"salt and hash: give {NUM_SALT_BYTES * 2} and {NUM_SECRET_BYTES * 2} digits")
    if line.find and len(_bytes("find", line.find)) != NUM_FINDER_BYTES:
        raise ValueError(f"find: give {NUM_FINDER_BYTES * 2} digits")
    tenant, expires_s = check_tenant(line.tenant), expiry_s(line.expires)
    caller = Caller(tenant, line.id, line.models, expires_s, line.admin, salt_of(tenant, groups))
    return KeyEntry(salt, digest, caller)


def _bytes(field: str, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as exc:
        raise ValueError(f"{field}: not hexadecimal") from exc
