"""Table `[kubernetes]`: the API server that workers with k8s:// URLs are looked up at."""

import re
from typing import Annotated

import msgspec

from gateway.config.options import Section, option

_POOL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


class KubernetesSection(Section, frozen=True):
    api_server: Annotated[
        str,
        option(
            "URL of the Kubernetes API server for workers given as k8s://...; by default that of the cluster "
            "in which kvgate runs, with the credentials of its service account.",
            "URL",
            is_rare=True,
        ),
    ] = ""
    token_file: Annotated[
        str,
        option(
            "File with the bearer token for that API server, read again when it changes; default: the "
            "service account's in a cluster, none for another api_server.",
            "path",
            is_rare=True,
        ),
    ] = ""
    ca_file: Annotated[
        str,
        option(
            "CA certificates (PEM) that verify that API server, read again when they change; default: the "
            "service account's in a cluster, the system's for another api_server.",
            "path",
            is_rare=True,
        ),
    ] = ""
    relist_s: Annotated[
        float,
        option(
            "Interval of full lists of all objects, which are compared with what the watch reported.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 600.0
    silence_s: Annotated[
        float,
        option(
            "Idle timeout of a watch, after which it is opened again where it ended; newer servers send a "
            "bookmark each minute.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 75.0
    pool_objects: Annotated[
        list[str],
        option(
            "InferencePool, as NAMESPACE/NAME, with InferenceObjectives and InferenceModelRewrites to obey: "
            "priorities of requests that name an objective in a trusted header, and models in place of those "
            "that requests name.",
            "namespace/name",
            is_rare=True,
        ),
    ] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        for each in self.pool_objects:
            if not _POOL.fullmatch(each):
                raise ValueError(f"pool_objects: '{each[:80]}' is not NAMESPACE/NAME, as in llm/vllm")
