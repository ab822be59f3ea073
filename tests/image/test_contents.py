"""The built image: its layout, its size, what is in it and what is not, and its bill of materials."""

import hashlib
import json
import os
import re
import stat
import subprocess
import zipfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

import kvgate
from tests import ROOT
from tests.image.container import IMAGE, ROOTFS, USER, blob, config_file, manifest, volumes
from tests.support.patience import patience

pytestmark = pytest.mark.image

MOST_BYTES = 120e6
UNWANTED = {
    *(
        "apt",
        "apt-get",
        "as",
        "bash",
        "cc",
        "c++",
        "cpp",
        "curl",
        "dpkg",
        "g++",
        "gcc",
        "ld",
        "make",
        "mount",
    ),
    *("perl", "pip", "pip3", "su", "tar", "uv", "wget"),
}
"""Programs that install or compile packages, fetch files or change users."""
PACKAGES = next(ROOTFS.glob("opt/kvgate/lib/python3*/site-packages"), ROOTFS)
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(str(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()) or "") or 0)
"""


def files() -> Iterator[tuple[str, os.stat_result]]:
    for folder, folders, names in os.walk(ROOTFS):
        for name in (*folders, *names):
            path = Path(folder) / name
            yield f"/{path.relative_to(ROOTFS)}", path.lstat()


@pytest.fixture(scope="module")
def sbom() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((IMAGE / "sbom.json").read_text())
    return read


def test_the_layers_are_small(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [layer["size"] for layer in manifest()["layers"]]
    with capsys.disabled():
        print(f"\nimage: {sum(sizes) / 1e6:.1f} MB compressed, {len(sizes)} layers of {sizes} bytes")
    assert 10e6 < sum(sizes) <= MOST_BYTES


def test_the_layout_is_whole() -> None:
    assert json.loads((IMAGE / "layout/oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    (image,) = json.loads((IMAGE / "layout/index.json").read_text())["manifests"]
    for part in (image, manifest()["config"], *manifest()["layers"]):
        content = blob(part["digest"]).read_bytes()
        assert (len(content), f"sha256:{hashlib.sha256(content).hexdigest()}") == (
            part["size"],
            part["digest"],
        )


def test_its_configuration_is_that_of_the_container_file() -> None:
    config = json.loads(config_file().read_text())["config"]
    assert (config["User"], config["Entrypoint"], config["Cmd"]) == (f"{USER}:{USER}", ["kvgate"], ["serve"])
    assert (config["StopSignal"], set(config["ExposedPorts"])) == ("SIGTERM", {"8000/tcp", "9400/tcp"})
    labels = {name.rpartition(".")[2]: value for name, value in config["Labels"].items()}
    assert (labels["title"], labels["version"], labels["licenses"]) == (
        "kvgate",
        kvgate.__version__,
        "Apache-2.0",
    )


def test_only_the_volumes_belong_to_its_user_or_to_all() -> None:
    loose = [path for path, found in files() if _is_writable(found) and path not in volumes()]
    assert loose == []


def _is_writable(found: os.stat_result) -> bool:
    return not stat.S_ISLNK(found.st_mode) and (
        found.st_uid != 0 or found.st_gid != 0 or found.st_mode & 0o022 != 0
    )


def test_no_file_takes_the_rights_of_its_owner() -> None:
    assert [
        path for path, found in files() if found.st_mode & 0o6000 and not stat.S_ISLNK(found.st_mode)
    ] == []


def test_nothing_in_it_installs_or_compiles() -> None:
    assert [
        path
        for path, _ in files()
        if Path(path).name in UNWANTED and Path(path).parent.name in ("bin", "sbin")
    ] == []
    installed = {dist.name.lower() for dist in distributions(path=[str(PACKAGES)])}
    assert {"kvgate", "grpcio", "opentelemetry-sdk", "oss-harmony"} <= installed and not installed & {
        "pip",
        "setuptools",
        "wheel",
        "mypy",
    }
    assert not list(ROOTFS.glob("usr/include/*")) and not list(ROOTFS.glob("usr/lib/gcc"))


def test_its_files_of_kvgate_are_those_of_the_wheel() -> None:
    (wheel,) = (ROOT / "dist").glob("kvgate-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not re.search(r"\.dist-info/|/$", name)}
    tops = (PACKAGES / "kvgate", *PACKAGES.glob("kvgate__mypyc*"))
    found = [path for top in tops for path in ([top] if top.is_file() else top.rglob("*")) if path.is_file()]
    assert {str(path.relative_to(PACKAGES)) for path in found if path.suffix != ".pyc"} == names


def test_each_module_has_bytecode_that_needs_no_check() -> None:
    """A read-only root can keep none, so a start would compile each module."""
    sources = [path for path in (PACKAGES / "kvgate").rglob("*.py")]
    for source in sources:
        (compiled,) = source.parent.glob(f"__pycache__/{source.stem}.cpython-3*.pyc")
        assert compiled.read_bytes()[4:8] == b"\x01\x00\x00\x00", "by its hash, unchecked"
    assert len(sources) > 300


def test_the_bill_is_valid(sbom: dict[str, Any]) -> None:
    command = [str(IMAGE / "venv/bin/python"), "-c", VALIDATE]
    done = subprocess.run(
        command, input=json.dumps(sbom), capture_output=True, text=True, timeout=patience(60)
    )
    assert done.returncode == 0, done.stderr


def test_the_bill_lists_every_package_in_it(sbom: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    listed = {(each["purl"].split("/")[0], each["name"], each["version"]) for each in sbom["components"]}
    installed = {
        ("pkg:pypi", re.sub(r"[-_.]+", "-", dist.name).lower(), dist.version)
        for dist in distributions(path=[str(PACKAGES)])
    }
    query = ["dpkg-query", f"--admindir={ROOTFS / 'var/lib/dpkg'}", "-W", "-f", "${Package} ${Version}\n"]
    answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=patience(30)).stdout
    debian = {("pkg:deb", *line.split()) for line in answer.splitlines()}
    assert listed == installed | debian and {("pkg:deb", "libc6"), ("pkg:pypi", "kvgate")} <= {
        each[:2] for each in listed
    }
    licensed = sum("licenses" in each for each in sbom["components"])
    with capsys.disabled():
        print(f"\nSBOM: {len(installed)} Python, {len(debian)} Debian packages, {licensed} with a licence")
    assert licensed > len(sbom["components"]) / 2
