"""URLs that name workers in Kubernetes: a Service, pods by their labels, or an InferencePool.

k8s://NAMESPACE/service/NAME[:PORT]      addresses in its EndpointSlices; PORT is a name or the pods' number
k8s://NAMESPACE/pods?app=vllm&port=8000  pods with these labels; a port's number or a container port's name
k8s://NAMESPACE/inferencepool/NAME       pods and target ports of the pool

`scheme=https` in the query: the workers speak TLS.
"""

import re
from dataclasses import dataclass
from enum import Enum

from gateway.http.url import check_characters, shown

KUBERNETES = "k8s://"
_URL = re.compile(r"k8s://([^/?#]*)/([a-z]+)(?:/([^/?#]*))?(?:\?([^#]*))?", re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_PORT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
MAX_NAME_CHARS = 253
MAX_LABELS = 20
_SCHEMES = ("http", "https")
_FORMS = "k8s://NAMESPACE/service/NAME:PORT, k8s://NAMESPACE/pods?app=vllm&port=8000 or k8s://NAMESPACE/inferencepool/NAME"


class ObjectKind(Enum):
    SERVICE = "service"
    PODS = "pods"
    POOL = "inferencepool"


@dataclass(frozen=True, slots=True)
class KubernetesUrl:
    """Parsed URL. `port` is a name or a number, empty where none is given; `labels` are those that pods must
    have; `url` is the normal form."""

    url: str
    namespace: str
    kind: ObjectKind
    name: str = ""
    port: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    is_tls: bool = False

    @classmethod
    def of(cls, text: str) -> "KubernetesUrl":
        """Parse a URL. Raises ValueError with the reason."""
        check_characters(text)
        if (found := _URL.fullmatch(text)) is None:
            raise ValueError(f"'{shown(text)}' names no workers in Kubernetes; write {_FORMS}")
        namespace, kind, name, query = found.groups(default="")
        try:
            return _parsed(namespace, kind.lower(), name, query)
        except ValueError as exc:
            raise ValueError(f"'{shown(text)}': {exc}") from exc

    @property
    def selector(self) -> str:
        """The labels as the API takes them."""
        return ",".join(f"{key}={value}" for key, value in self.labels)

    @property
    def server_name(self) -> str:
        """The name in the certificates of a Service's pods; empty for other kinds."""
        return f"{self.name}.{self.namespace}.svc" if self.kind is ObjectKind.SERVICE else ""


def port_number(text: str) -> int | None:
    """The number that a port is, None where it is a name. Raises ValueError for an impossible port."""
    if text.isdigit():
        if 1 <= int(text) <= 65535 and not text.startswith("0"):
            return int(text)
        raise ValueError(f"{text} is not a port (1 to 65535)")
    if not _PORT_NAME.fullmatch(text) or not re.search("[a-z]", text):
        raise ValueError(f"'{text}' is neither a port's number nor its name")
    return None


def _parsed(namespace: str, kind_name: str, name: str, query: str) -> KubernetesUrl:
    if not _LABEL.fullmatch(namespace):
        raise ValueError(f"'{namespace}' is not a namespace")
    kind = next((each for each in ObjectKind if each.value == kind_name), None)
    if kind is None:
        raise ValueError(f"'{kind_name}' is not a kind of object that has workers; write {_FORMS}")
    given = _query(query)
    is_tls = _scheme(given.pop("scheme", "http")) == "https"
    port = given.pop("port", "") if kind is ObjectKind.PODS else ""
    if kind is ObjectKind.SERVICE:
        name, _, port = name.partition(":")
    if kind is ObjectKind.PODS:
        _check_pods(name, port, given)
    else:
        _check_object(name, given)
    if port:
        port_number(port)
    labels = tuple(given.items())
    url = _normal(namespace, kind, name, port, labels, is_tls=is_tls)
    return KubernetesUrl(url, namespace, kind, name, port, labels, is_tls)


def _scheme(scheme: str) -> str:
    if scheme not in _SCHEMES:
        raise ValueError(f"the scheme '{scheme}' is neither http nor https")
    return scheme


def _check_pods(name: str, port: str, labels: dict[str, str]) -> None:
    if name:
        raise ValueError("pods are selected by labels, as in /pods?app=vllm&port=8000")
    if not port:
        raise ValueError("names no port; add port=8000, or the name of a container's port")
    if not labels:
        raise ValueError("names no label: it would select every pod; add one, as in app=vllm")
    if len(labels) > MAX_LABELS:
        raise ValueError(f"has {len(labels)} labels; {MAX_LABELS} are the most")
    for key, value in labels.items():
        prefix, slash, label = key.rpartition("/")
        if not label or not _VALUE.fullmatch(label) or (slash and not _is_name(prefix)):
            raise ValueError(f"'{key}' is not the name of a label")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"'{value}' is not the value of a label")


def _check_object(name: str, others: dict[str, str]) -> None:
    if not _is_name(name):
        raise ValueError(f"'{name}' is not the name of an object")
    if others:
        raise ValueError(f"does not take '{next(iter(others))}'; only scheme")


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME_CHARS and all(_LABEL.fullmatch(each) for each in name.split("."))


def _query(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if not equals or "=" in value:
            raise ValueError(f"'{part}' is not of the form NAME=VALUE; labels are compared by equality only")
        if "%" in part:
            raise ValueError(f"'{part}' is percent-encoded; write it plainly")
        if key in found:
            raise ValueError(f"names '{key}' twice")
        found[key] = value
    return found


def _normal(
    namespace: str,
    kind: ObjectKind,
    name: str,
    port: str,
    labels: tuple[tuple[str, str], ...],
    *,
    is_tls: bool,
) -> str:
    path = f"{KUBERNETES}{namespace}/{kind.value}"
    if kind is not ObjectKind.PODS:
        path += f"/{name}"
    if kind is ObjectKind.SERVICE and port:
        path += f":{port}"
    query = [f"{key}={value}" for key, value in labels]
    query += [f"port={port}"] if kind is ObjectKind.PODS else []
    query += ["scheme=https"] if is_tls else []
    return path + ("?" + "&".join(query) if query else "")
