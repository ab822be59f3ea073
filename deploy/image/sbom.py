"""Bill of materials (CycloneDX 1.6, JSON) of an image's root file system: python3 sbom.py ROOT > sbom.json

It lists the Python packages by the metadata that installers leave, and Debian's by /var/lib/dpkg/status.
Libraries that a wheel brings inside its own files are not named by either, so they are not listed.
"""

import json
import re
import sys
import uuid
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any
from urllib.parse import quote

LONGEST_NAME = 100
"""Letters of a licence's name: some packages have the whole text in that field."""


def python_licences(metadata: "Message[str, str]") -> list[dict[str, Any]]:
    """Return the SPDX expression, else the name that the author gives, else those of the classifiers."""
    if expression := metadata.get("License-Expression"):
        return [{"expression": expression}]
    given = (metadata.get("License") or "").strip()
    if given and "\n" not in given and len(given) <= LONGEST_NAME:
        return [_named(given)]
    prefix = "License :: OSI Approved :: "
    classifiers = metadata.get_all("Classifier", [])
    return [_named(each.removeprefix(prefix)) for each in classifiers if each.startswith(prefix)]


def debian_licences(copyright_file: str) -> list[dict[str, Any]]:
    """Return the names in a copyright file that a program can read; older ones are prose, and give none."""
    if "copyright-format/1.0" not in copyright_file.partition("\n\n")[0]:
        return []
    return [_named(name) for name in sorted(set(re.findall(r"^License: *(\S.*)$", copyright_file, re.M)))]


def _named(name: str) -> dict[str, Any]:
    return {"license": {"name": name.strip()}}


def _component(purl: str, name: str, version: str, licences: list[dict[str, Any]]) -> dict[str, Any]:
    parts = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return {**parts, "licenses": licences} if licences else parts


def python_packages(root: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(root.glob("opt/kvgate/lib/python3*/site-packages/*.dist-info/METADATA")):
        metadata = Parser().parsestr(path.read_text(), headersonly=True)
        name, version = re.sub(r"[-_.]+", "-", metadata["Name"]).lower(), metadata["Version"]
        purl = f"pkg:pypi/{name}@{quote(version, safe='')}"
        yield _component(purl, name, version, python_licences(metadata))


def debian_packages(root: Path) -> Iterator[dict[str, Any]]:
    release = (root / "etc/debian_version").read_text().partition(".")[0].strip()
    for paragraph in (root / "var/lib/dpkg/status").read_text().strip().split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): *(.*)$", paragraph, re.M))
        name, version = fields["Package"], fields["Version"]
        purl = f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe=':~')}"
        purl += f"?arch={fields['Architecture']}&distro=debian-{release}"
        copyright_file = root / "usr/share/doc" / name / "copyright"
        text = copyright_file.read_text(errors="replace") if copyright_file.is_file() else ""
        yield _component(purl, name, version, debian_licences(text))


def bill(root: Path) -> dict[str, Any]:
    components = [*python_packages(root), *debian_packages(root)]
    own = next(each for each in components if each["name"] == "kvgate")
    subject = {"type": "container", "bom-ref": "kvgate-image", "name": "kvgate", "version": own["version"]}
    listed = " ".join(each["purl"] for each in components)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, listed).urn,  # equal for equal contents
        "version": 1,
        "metadata": {"component": subject},
        "components": components,
    }


if __name__ == "__main__":
    json.dump(bill(Path(sys.argv[1])), sys.stdout, indent=1)
    print()
