"""Access to an API server: as configured, or as a pod of a cluster has it; files that change."""

import os
from pathlib import Path

import pytest

from gateway.config.kubernetes import KubernetesSection
from gateway.core.errors import ConfigError
from gateway.discovery.kubernetes.cluster import ClusterAccess, cluster_access
from tests.support.certificates import Authority
from tests.support.worlds.lifecycle import warnings

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def replaced(path: Path, text: str) -> None:
    """Replace a file as the kubelet does, by another inode."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def test_a_pod_has_its_cluster_s(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_text(Path(Authority(tmp_path / "ca").file).read_text())
    access = cluster_access(KubernetesSection(), IN_CLUSTER, tmp_path)
    assert (access.url, access.authorization) == ("https://10.96.0.1:6443", "Bearer secret")
    context = access.context
    assert context is not None and context is access.context and len(context.get_ca_certs()) == 1
    six = cluster_access(KubernetesSection(), {"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path)
    assert six.url == "https://[fd00::1]:443"


def test_another_server_has_no_token_of_this_cluster() -> None:
    access = cluster_access(KubernetesSection(api_server="http://127.0.0.1:8001/"), IN_CLUSTER)
    assert (access.url, access.authorization, access.context) == ("http://127.0.0.1:8001", None, None)
    assert ClusterAccess("https://a").context is not None


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (KubernetesSection(), "KUBERNETES_SERVICE_HOST is not set"),
        (KubernetesSection(api_server="ftp://x"), "kubernetes_api_server: 'ftp://x' is not an http"),
    ],
)
def test_without_a_server_there_is_no_access(section: KubernetesSection, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        cluster_access(section, {})


def test_files_are_read_again_when_they_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("one")
    ca.write_text(Path(Authority(tmp_path / "a").file).read_text())
    access = ClusterAccess("https://10.0.0.1", token, ca)
    first = access.context
    assert access.authorization == "Bearer one"
    replaced(token, "two")
    replaced(ca, Path(Authority(tmp_path / "b").file).read_text())
    assert access.authorization == "Bearer two"
    second = access.context
    assert second is not first
    replaced(ca, "no certificate")
    replaced(token, "with\nlines")
    assert (access.context, access.authorization) == (second, "Bearer two")
    token.unlink()
    assert access.authorization == "Bearer two"
    words = ("has no certificates", "has no token", "cannot be read")
    assert [any(word in line for line in warnings(caplog)) for word in words] == [True] * 3
    assert "two" not in repr(access)
