"""Access to a cluster's API server: address, token and CA. Both files are read again when they change: tokens
of service accounts last an hour, and clusters rotate their CA."""

import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from gateway.config.kubernetes import KubernetesSection
from gateway.core.errors import ConfigError
from gateway.http.address import Address
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.kubernetes")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_FILE_BYTES = 1 << 20
"""Largest token or bundle of CAs."""

_Stamp = tuple[int, int, int] | None


class ClusterAccess:
    """Address and credentials of an API server. A file that cannot be read leaves what it held before in use,
    which is logged: the kubelet replaces both."""

    def __init__(self, url: str, token_file: Path | None = None, ca_file: Path | None = None) -> None:
        self.url = url
        self._token_file = token_file
        self._ca_file = ca_file
        self._token = ""
        self._context: ssl.SSLContext | None = None
        self._stamps: dict[Path, _Stamp] = {}
        self._log = RateLimitedLog(log)

    def __repr__(self) -> str:
        return f"ClusterAccess({self.url})"

    @property
    def authorization(self) -> str | None:
        """The header's value, by the token as it is now."""
        if self._token_file and (text := self._changed(self._token_file)):
            token = text.decode("latin-1").strip()
            if token.isascii() and token.isprintable():
                self._token = token
            else:
                self._log.warning("Kubernetes: %s has no token; keeping the previous one", self._token_file)
        return f"Bearer {self._token}" if self._token else None

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context, by the CA as it is now; None for an http URL."""
        if not self.url.startswith("https:"):
            return None
        if self._ca_file is None:
            self._context = self._context or ssl.create_default_context()
        elif text := self._changed(self._ca_file):
            try:
                self._context = ssl.create_default_context(cadata=text.decode("ascii"))
            except (ValueError, ssl.SSLError) as exc:
                self._log.warning("Kubernetes: %s has no certificates (%s)", self._ca_file, exc)
        self._context = self._context or ssl.create_default_context()
        return self._context

    def _changed(self, path: Path) -> bytes | None:
        """The text of a file that has changed since it was read; None if it has not, or cannot be read."""
        try:
            found = path.stat()
            stamp = found.st_mtime_ns, found.st_size, found.st_ino
            if stamp == self._stamps.get(path):
                return None
            with path.open("rb") as file:
                text = file.read(MAX_FILE_BYTES)
        except OSError as exc:
            self._log.warning("Kubernetes: %s cannot be read (%s)", path, exc.strerror or exc)
            return None
        self._stamps[path] = stamp
        return text


def cluster_access(
    section: KubernetesSection,
    environ: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
    *,
    needed_by: str = "worker: k8s://",
) -> ClusterAccess:
    """Access as configured, else that of the cluster in which this process runs. Raises ConfigError, which
    says what it is `needed_by`."""
    token_file = Path(section.token_file) if section.token_file else None
    ca_file = Path(section.ca_file) if section.ca_file else None
    if section.api_server:
        try:
            return ClusterAccess(Address.of(section.api_server).url, token_file, ca_file)
        except ValueError as exc:
            raise ConfigError(f"kubernetes_api_server: {exc}") from exc
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError(
            f"{needed_by} needs an API server: this is not a pod (KUBERNETES_SERVICE_HOST is not "
            "set), and [kubernetes] api_server is not set"
        )
    address = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ClusterAccess(address, token_file or account / "token", ca_file or account / "ca.crt")
