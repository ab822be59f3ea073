"""A real API server of Kubernetes with etcd, on loopback, with objects that a test writes; no controllers.

    test ── put, patch, remove ──► kube-apiserver ──► etcd      kill, restart, compact: the faults
                                        ▲
                    kvgate, kubectl, helm (tokens, RBAC, TLS by a CA of its own)

`make test-kube` builds it; KUBE names the folder of another.
"""

import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtest.ports import free_port
from tests import ROOT
from tests.support.certificates import Authority
from tests.support.patience import patience, wait_until

TOOLS = ROOT / os.environ.get("KUBE", ".cache/kube") / "bin"
KUBECTL = ROOT / os.environ.get("HELM_TOOLS", ".cache/helm") / "kubectl"
START_S, STOP_S = 90.0, 20.0
ADMIN = "admin"
USERS = {ADMIN: "system:masters", "reader": "", "picker": "", "stranger": ""}
"""Users of the tests with their groups. Each one's token is its name; `stranger` has no rights."""

RBAC = "rbac.authorization.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS = {
    "pods": ("v1", "Pod"),
    "inferencepools": ("inference.networking.k8s.io/v1", "InferencePool"),
}
"""Version and kind of the objects of a collection."""
MERGE = "application/merge-patch+json"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """Answer of the API; `body` is None where it is no JSON."""

    status: int
    body: Any
    text: str


class RealCluster:
    """An API server and its etcd, with files in `home`; a context manager. `url` is for clients that trust
    `ca_file`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        authority = Authority(home / "ca")
        self.ca_file = authority.file
        self._pair = authority.issue()
        self._context = ssl.create_default_context(cafile=self.ca_file)
        self._etcd_port, self._peer_port, self.port = free_port(), free_port(), free_port()
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        lines = [f'{user},{user},{user},"{groups}"' for user, groups in USERS.items()]
        (home / "tokens.csv").write_text("\n".join(lines) + "\n")

    def __enter__(self) -> "RealCluster":
        client, peer = self._etcd_url, f"http://127.0.0.1:{self._peer_port}"
        self._etcd = self._run(
            "etcd",
            f"--data-dir={self.home / 'etcd'}",
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--initial-cluster=default={peer}",
        )
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for process in (self._server, self._etcd):
            if process is not None:
                process.kill()  # its data are of this test run only
                process.wait(patience(STOP_S))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    # faults ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the API server, and wait until it serves its administrator."""
        self.start_at_once()
        wait_until(self._is_ready, "the API server is ready", START_S)

    def start_at_once(self) -> None:
        """Start the API server without a wait."""
        self._server = self._run(
            "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            "--etcd-compaction-interval=0",  # tests compact
            *("--bind-address=127.0.0.1", f"--secure-port={self.port}", "--insecure-port=0"),
            *("--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16"),
            *(f"--tls-cert-file={self._pair.cert}", f"--tls-private-key-file={self._pair.key}"),
            *(f"--token-auth-file={self.home / 'tokens.csv'}", "--authorization-mode=RBAC"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self._pair.key}",
            f"--service-account-key-file={self._pair.key}",
            "--disable-admission-plugins=ServiceAccount",  # no controller makes the accounts of namespaces
            f"--cert-dir={self.home / 'certs'}",
        )

    def kill(self) -> None:
        """Kill the API server as a crash would."""
        assert self._server
        self._server.kill()
        self._server.wait(patience(STOP_S))

    def compact(self) -> None:
        """Forget all versions of objects but the latest. A running API server still has those it has seen."""
        revision = self._ask_etcd("range", key="AA==")["header"]["revision"]
        self._ask_etcd("compaction", revision=revision, physical=True)

    # objects -----------------------------------------------------------------------------------

    def ask(
        self, method: str, path: str, body: Any = None, user: str = ADMIN, kind: str = "application/json"
    ) -> ApiAnswer:
        """Send a request as a user, or with a token."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {user}", "Content-Type": kind, "Accept": "application/json"}
        asked = urllib.request.Request(self.url + path, data, headers, method=method)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._context)
        )
        try:
            with opener.open(asked, timeout=patience(60)) as answer:
                return _answer(answer.status, answer.read())
        except urllib.error.HTTPError as exc:
            with exc:
                return _answer(exc.code, exc.read())

    def done(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Send a request of the administrator, which must succeed."""
        answer = self.ask(method, path, body, kind=kind)
        assert answer.status < 300, answer.text
        return answer.body

    def namespace(self, name: str) -> None:
        """Make a namespace."""
        self.done("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def define(self, *definitions: Object) -> None:
        """Define custom resources, and wait until they are served."""
        for each in definitions:
            self.done("POST", DEFINITIONS, each)
        for each in definitions:
            spec = each["spec"]
            path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            wait_until(lambda path=path: self.ask("GET", path).status == 200, f"{path} is served")

    def undefine(self, name: str) -> None:
        """Delete a custom resource's definition with its objects, and wait until it is not served."""
        spec = self.done("GET", f"{DEFINITIONS}/{name}")["spec"]
        self.done("DELETE", f"{DEFINITIONS}/{name}")
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        wait_until(lambda: self.ask("GET", path).status == 404, f"{path} is not served")

    def allow(self, name: str, rules: list[Object], subject: Object, namespace: str = "llm") -> None:
        """Give someone rights in a namespace."""
        at = f"/apis/{RBAC}/namespaces/{namespace}"
        self.done("POST", f"{at}/roles", {"metadata": {"name": name}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        bound = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        self.done("POST", f"{at}/rolebindings", bound)

    def token(self, namespace: str, account: str) -> str:
        """Make a token of a service account, as the kubelet does for its pods."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        made = self.done("POST", path, {"spec": {"expirationSeconds": 3600}})
        return str(made["status"]["token"])

    def put(self, path: str, found: Object) -> None:
        """Add an object, or change its labels, annotations and specification."""
        where = f"{path}/{found['metadata']['name']}"
        version, kind = KINDS[path.rpartition("/")[2]]
        whole = {"apiVersion": version, "kind": kind} | (runnable(found) if kind == "Pod" else found)
        if self.ask("GET", where).status == 404:
            self.done("POST", path, whole)
            return
        changes = {"labels": {"app": None} | (found["metadata"].get("labels") or {})}
        changes["annotations"] = found["metadata"].get("annotations")
        change = {"metadata": changes} | ({} if kind == "Pod" else {"spec": found["spec"]})
        self.done("PATCH", where, change, MERGE)

    def pod(self, path: str, found: Object) -> None:
        """Write a pod with its status, as the scheduler and a kubelet would."""
        self.put(path, found)
        where = f"{path}/{found['metadata']['name']}/status"
        self.done("PATCH", where, {"status": found["status"]}, MERGE)

    def delete(self, path: str, name: str) -> None:
        """Delete an object; one with a finalizer stays."""
        self.done("DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0})

    def remove(self, path: str, name: str) -> None:
        """Delete an object at once, whatever holds it."""
        metadata = self.done("GET", f"{path}/{name}")["metadata"]
        if metadata.get("finalizers"):
            self.done("PATCH", f"{path}/{name}", {"metadata": {"finalizers": None}}, MERGE)
        if "deletionTimestamp" not in metadata:
            self.delete(path, name)

    def clear(self, path: str) -> None:
        """Delete all objects of a collection; none where it is not served."""
        if (listed := self.ask("GET", path)).status == 200:
            for each in listed.body["items"]:
                self.remove(path, each["metadata"]["name"])

    # tools -------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """Configuration of kubectl and Helm for the administrator."""
        path = self.home / "kubeconfig"
        cluster = {"server": self.url, "certificate-authority": self.ca_file}
        context = {"cluster": "test", "user": ADMIN, "namespace": "llm"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": ADMIN, "user": {"token": ADMIN}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        return path

    def apply(self, *objects: Object) -> None:
        """Apply objects as a user does, by default in the namespace `llm`."""
        done = self.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(objects))
        assert done.returncode == 0, done.stderr

    def withdraw(self, *objects: Object) -> None:
        """Delete what was applied, as far as it is there."""
        given = yaml.safe_dump_all(objects)
        done = self.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", given=given)
        assert done.returncode == 0, done.stderr

    def kubectl(self, *arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
        command = [str(KUBECTL), f"--kubeconfig={self.kubeconfig}", *arguments]
        environment = os.environ | {"HOME": str(self.home)}  # its cache of what the server serves
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=patience(60), env=environment
        )

    # processes ---------------------------------------------------------------------------------

    @property
    def _etcd_url(self) -> str:
        return f"http://127.0.0.1:{self._etcd_port}"

    def _run(self, tool: str, *flags: str) -> "subprocess.Popen[bytes]":
        with (self.home / f"{tool}.log").open("ab") as log:
            return subprocess.Popen([str(TOOLS / tool), *flags], stdout=log, stderr=log)

    def _is_ready(self) -> bool:
        assert self._server and self._server.poll() is None, (self.home / "kube-apiserver.log").read_text()
        try:
            return self.ask("GET", "/readyz").status == 200
        except (OSError, ssl.SSLError):
            return False

    def _ask_etcd(self, what: str, **body: Any) -> Any:
        asked = urllib.request.Request(f"{self._etcd_url}/v3/kv/{what}", json.dumps(body).encode())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(asked, timeout=patience(20)) as answer:
            return json.load(answer)


def runnable(found: Object) -> Object:
    """Complete a pod of `tests.support.kube_api` with what a real API server asks of one."""
    containers = [
        {"name": f"c{i}", "image": "none", "ports": [p | {"protocol": "TCP"} for p in each["ports"] or ()]}
        for i, each in enumerate(found["spec"]["containers"])
    ]
    names = ("name", "labels", "annotations", "finalizers")
    kept = {name: found["metadata"][name] for name in names if name in found["metadata"]}
    return {"metadata": kept, "spec": {"containers": containers}}


def _answer(status: int, data: bytes) -> ApiAnswer:
    text = data.decode()
    try:
        return ApiAnswer(status, json.loads(text), text)
    except ValueError:
        return ApiAnswer(status, None, text)
