"""Keys as users make them, and the header that carries one."""

import subprocess

from loadtest.fleet import GATEWAY
from tests.support.blackbox.http1_bytes import Header


def new_key(*arguments: str) -> tuple[str, str]:
    """Key and its line, as users make them."""
    done = subprocess.run([*GATEWAY, "key", "new", *arguments], capture_output=True, text=True, check=True)
    return done.stderr.split()[-1], done.stdout


def bearer(key: str) -> Header:
    return b"Authorization", f"Bearer {key}".encode()
