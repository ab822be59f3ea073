"""Keys for the admin API: one for administrators, one for a tenant."""

from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.key_format import format_key_record

ROOT, PLAIN = (make_key(bytes([n] * 6), bytes(32)) for n in range(2))
LINES = [
    format_key_record(ROOT, bytes(16), "ops", admin=True),
    format_key_record(PLAIN, bytes(16), "acme", ["m"], "1970-01-02"),
    '{"group":"g","tenants":["acme"]}',
]
