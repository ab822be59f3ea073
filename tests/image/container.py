"""Containers of the built image, run by crun, a runtime that clusters use, as the chart's pod says.

User, environment and volumes are those of the rendered Deployment, and so are a read-only root, the default
filter of system calls, no capabilities and no new privileges. The network is this machine's, so that a
container reaches workers of the tests.
"""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from tests import ROOT
from tests.image.seccomp import default_filter
from tests.support.chart import GOLDEN, pod_of
from tests.support.gateway_process import written
from tests.support.patience import patience, wait_until

IMAGE = ROOT / os.environ.get("IMAGE", ".cache/image")
ROOTFS = IMAGE / "bundle/rootfs"
POD = pod_of(GOLDEN / "urls.yaml")
USER = POD["securityContext"]["runAsUser"]
# crun 1.8 refuses a machine with both versions of cgroups, even where it shall use none.
WITHOUT_CGROUPS = 'mount -t tmpfs none /sys/fs/cgroup && exec crun --cgroup-manager=disabled "$@"'
ADDRESSES = re.compile(r"listening on (http://[^\s\",]+), admin on (http://[^\s\",]+)")


def volumes() -> list[str]:
    """Paths of the pod's empty volumes."""
    empty = {volume["name"] for volume in POD["volumes"] if "emptyDir" in volume}
    return [each["mountPath"] for each in POD["containers"][0]["volumeMounts"] if each["name"] in empty]


def _tmpfs(path: str, user: dict[str, int]) -> dict[str, Any]:
    options = ["nosuid", "nodev", "mode=2770", f"uid={user['uid']}", f"gid={user['gid']}"]
    return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": options}


def specification(*arguments: str) -> dict[str, Any]:
    """Input of the runtime: the image's own configuration, as a restricted pod of the chart."""
    spec: dict[str, Any] = json.loads((IMAGE / "bundle/config.json").read_text())
    security, (container,) = POD["securityContext"], POD["containers"]
    restricted = container["securityContext"]
    user = {"uid": security["runAsUser"], "gid": security["runAsGroup"]}
    command = json.loads(config_file().read_text())["config"]["Entrypoint"]
    variables = [f"{each['name']}={each['value']}" for each in container["env"] if "value" in each]
    assert restricted["capabilities"] == {"drop": ["ALL"]}
    spec["process"] |= {
        "terminal": False,
        "user": user,
        "args": [*command, *arguments],
        "env": [*spec["process"]["env"], *variables],
        "capabilities": {kind: [] for kind in spec["process"]["capabilities"]},
        "noNewPrivileges": not restricted["allowPrivilegeEscalation"],
        "rlimits": [],
    }
    spec["root"] = {"path": str(ROOTFS), "readonly": restricted["readOnlyRootFilesystem"]}
    spec["mounts"] = [each for each in spec["mounts"] if each["type"] != "cgroup"]
    spec["mounts"] += [_tmpfs(path, user) for path in volumes()]
    kinds = [
        each for each in spec["linux"]["namespaces"] if each["type"] not in ("network", "cgroup", "user")
    ]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    spec["linux"] |= {"namespaces": kinds, "resources": {}, "seccomp": default_filter()}
    return spec


def blob(digest: str) -> Path:
    return IMAGE / "layout/blobs" / digest.replace(":", "/")


def manifest() -> dict[str, Any]:
    (image,) = json.loads((IMAGE / "layout/index.json").read_text())["manifests"]
    read: dict[str, Any] = json.loads(blob(image["digest"]).read_text())
    return read


def config_file() -> Path:
    return blob(manifest()["config"]["digest"])


def crun(state: Path, *arguments: str) -> list[str]:
    return ["unshare", "--mount", "sh", "-c", WITHOUT_CGROUPS, "crun", "--root", str(state), *arguments]


class Container:
    """`kvgate ARGUMENTS` in the image; a context manager that kills it where a test has not stopped it."""

    def __init__(self, *arguments: str, command: list[str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvgate-image-")
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed in __exit__
        self._state = Path(self._folder.name) / "state"
        spec = specification(*arguments)
        if command is not None:
            spec["process"]["args"] = command
        (Path(self._folder.name) / "config.json").write_text(json.dumps(spec))

    def __enter__(self) -> "Container":
        command = crun(self._state, "run", "--bundle", self._folder.name, "kvgate")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.signal("KILL")
            self.process.wait(patience(30))
        self._log.close()
        self._folder.cleanup()

    def signal(self, name: str) -> None:
        subprocess.run(crun(self._state, "kill", "kvgate", name), check=True, timeout=patience(30))

    def end(self) -> tuple[int, str]:
        """Wait for its end. Returns the exit status and the log."""
        return self.process.wait(patience(60)), self.log()

    def log(self) -> str:
        return written(self._log)

    def pid(self) -> int:
        """Process id, as this machine sees it, of the container's first process."""
        read = subprocess.run(
            crun(self._state, "state", "kvgate"),
            check=True,
            capture_output=True,
            text=True,
            timeout=patience(30),
        )
        found: int = json.loads(read.stdout)["pid"]
        return found

    def addresses(self) -> tuple[str, str]:
        """Wait until it listens. Returns the URLs for clients and for admins."""
        wait_until(lambda: ADDRESSES.search(self.log()) or self.process.poll() is not None)
        found = ADDRESSES.search(self.log())
        assert found, self.log()
        return found[1], found[2]
