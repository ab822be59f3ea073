"""The chart's life in a cluster: real Helm 3 installs, upgrades, rolls back and uninstalls it."""

import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gateway import cli
from tests.helm.tools import VALUES, helm
from tests.helm.writable_api import WritableApi
from tests.support.chart import CHART, GOLDEN, manifests, pod_of

pytestmark = pytest.mark.helm

CHECK = re.compile(r"exec \w+/[\w-]+ -- kvgate (check .*)")
DEPLOYMENT = "apis/apps/v1/namespaces/llm/deployments/kvgate"


class Cluster:
    def __init__(self, api: WritableApi, home: Path) -> None:
        self.api = api
        config = home / "kubeconfig"
        config.touch(mode=0o600)
        config.write_text("{apiVersion: v1, kind: Config}\n")
        self._flags = ["--kube-apiserver", api.url, "--kubeconfig", str(config), "--namespace", "llm"]

    def tried(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return helm(*arguments, *self._flags)

    def helm(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        done = self.tried(*arguments)
        assert done.returncode == 0, done.stderr
        return done

    def put(self, verb: str, *arguments: str) -> str:
        return self.helm(verb, "kvgate", str(CHART), "--disable-openapi-validation", *arguments).stdout

    @property
    def deployment(self) -> Any:
        return self.api.objects[DEPLOYMENT]


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_each_kind_of_values_is_installed_and_uninstalled(values: Path, tmp_path: Path) -> None:
    with WritableApi() as api:
        cluster = Cluster(api, tmp_path)
        notes = cluster.put("install", "--values", str(values))
        assert "port-forward" in notes and "STATUS: deployed" in notes
        check = cli._parser().parse_args(shlex.split(CHECK.findall(notes)[0]))
        container = pod_of(GOLDEN / values.name)["containers"][0]
        assert check.worker == [url for flag, url in pairwise(container["args"]) if flag == "--worker"]
        assert (check.config is not None) is ("--config" in container["args"])
        golden = [each["kind"] for each in manifests(GOLDEN / values.name)]
        assert api.kinds() == sorted(kind for kind in golden if kind != "Pod")  # that is of `helm test`
        cluster.helm("uninstall", "kvgate")
        assert api.objects == {}


def test_a_release_is_upgraded_and_rolled_back(tmp_path: Path) -> None:
    with WritableApi() as api:
        cluster = Cluster(api, tmp_path)
        cluster.put("install", "--set", "workers.selector.app=vllm")
        assert cluster.deployment["spec"]["replicas"] == 1
        cluster.put("upgrade", "--set", "workers.selector.app=vllm", "--set", "replicaCount=3")
        assert (cluster.deployment["spec"]["replicas"], api.num_patches > 0) == (3, True)
        assert "PodDisruptionBudget" in api.kinds()
        assert "Pod" not in api.kinds()  # that of `helm test`
        cluster.helm("rollback", "kvgate", "1")
        assert cluster.deployment["spec"]["replicas"] == 1
        assert "PodDisruptionBudget" not in api.kinds()


def test_the_bundled_valkey_keeps_its_password_over_an_upgrade(tmp_path: Path) -> None:
    flags = ("--set", "workers.selector.app=vllm", "--set", "valkey.enabled=true")
    secret = "api/v1/namespaces/llm/secrets/kvgate-valkey"
    with WritableApi() as api:
        cluster = Cluster(api, tmp_path)
        notes = cluster.put("install", *flags)
        assert "Valkey is for trials" in notes
        password = api.objects[secret]["data"]["password"]
        cluster.put("upgrade", *flags, "--set", "replicaCount=2")
        assert api.objects[secret]["data"]["password"] == password


def test_an_old_cluster_is_asked_for_what_it_serves(tmp_path: Path) -> None:
    flags = ("--set", "workers.selector.app=vllm", "--set", "autoscaling.enabled=true")
    with WritableApi(minor=20) as api:
        cluster = Cluster(api, tmp_path)
        cluster.put("install", *flags)
        assert "apis/policy/v1beta1/namespaces/llm/poddisruptionbudgets/kvgate" in api.objects
        assert "apis/autoscaling/v2beta2/namespaces/llm/horizontalpodautoscalers/kvgate" in api.objects
        refused = cluster.tried("upgrade", "kvgate", str(CHART), "--set", "workers.service=vllm")
        assert refused.returncode != 0 and "workers.service needs Kubernetes 1.21" in refused.stderr


def test_an_upgrade_with_misspelt_values_changes_nothing(tmp_path: Path) -> None:
    with WritableApi() as api:
        cluster = Cluster(api, tmp_path)
        cluster.put("install", "--set", "workers.selector.app=vllm")
        with pytest.raises(AssertionError, match="replicas is not allowed"):
            cluster.put("upgrade", "--set", "workers.selector.app=vllm", "--set", "replicas=3")
        assert (cluster.deployment["spec"]["replicas"], api.num_patches) == (1, 0)
