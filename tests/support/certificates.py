"""Authorities and certificates in files, made for one test, for loopback."""

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

LOOPBACK = ("127.0.0.1", "localhost")


class Pair:
    """A certificate and its key, as options name them."""

    def __init__(self, directory: Path) -> None:
        self.cert = str(directory / "tls.crt")
        self.key = str(directory / "tls.key")

    def context(self, clients_of: "Authority | None" = None) -> ssl.SSLContext:
        """Context of a server with this certificate; it may ask clients for a certificate of `clients_of`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if clients_of:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients_of.file)
        return context


class Authority:
    """Certificate authority; `file` is its certificate."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self._directory = directory
        self._num_issued = 0
        self.file = str(directory / "ca.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, *names: str, is_expired: bool = False) -> Pair:
        """A certificate for loopback, or for `names`, in a directory of its own."""
        self._num_issued += 1
        directory = self._directory / str(self._num_issued)
        directory.mkdir()
        ends = datetime.now(UTC) + timedelta(days=-1 if is_expired else 1)
        issued = self._ca.issue_cert(
            *(names or LOOPBACK), not_before=ends - timedelta(days=30), not_after=ends
        )
        pair = Pair(directory)
        Path(pair.cert).write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(pair.key)
        return pair

    def context(self, shown: Pair | None = None) -> ssl.SSLContext:
        """Context of a client that trusts this authority, with a certificate of its own where given."""
        context = ssl.create_default_context(cafile=self.file)
        if shown:
            context.load_cert_chain(shown.cert, shown.key)
        return context


class Mounted(Pair):
    """Pair as Kubernetes mounts a secret: the files are links into `..data`, a link that is swapped to
    another directory.
    """

    def __init__(self, directory: Path, first: Pair) -> None:
        directory.mkdir()
        super().__init__(directory)
        self._data = directory / "..data"
        self._num_swaps = 0
        self.swap(first)
        for name in ("tls.crt", "tls.key"):
            (directory / name).symlink_to(Path("..data") / name)

    def swap(self, pair: Pair) -> None:
        self._num_swaps += 1
        link = self._data.with_name(f"..{self._num_swaps}")
        link.symlink_to(Path(pair.cert).parent)
        os.replace(link, self._data)


def serial(certificate_file: str) -> str:
    """Format time as `getpeercert` does."""
    from cryptography import x509

    first = x509.load_pem_x509_certificates(Path(certificate_file).read_bytes())[0]
    text = f"{first.serial_number:X}"
    return text if len(text) % 2 == 0 else "0" + text
