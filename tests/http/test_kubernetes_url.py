"""k8s:// URLs: parsed into one normal form, or refused with the reason."""

import pytest

from gateway.http.address import names_several, worker_url
from gateway.http.kubernetes_url import MAX_LABELS, KubernetesUrl, ObjectKind, port_number

GOOD = [
    ("k8s://llm/service/vllm", "k8s://llm/service/vllm"),
    ("K8S://llm/Service/vllm:http", "k8s://llm/service/vllm:http"),
    ("k8s://llm/service/vllm:8000?scheme=https", "k8s://llm/service/vllm:8000?scheme=https"),
    ("k8s://llm/service/vllm?scheme=http", "k8s://llm/service/vllm"),
    ("k8s://llm/pods?port=8000&app=vllm", "k8s://llm/pods?app=vllm&port=8000"),
    ("k8s://llm/pods?llm-d.ai/role=decode&port=http", "k8s://llm/pods?llm-d.ai/role=decode&port=http"),
    ("k8s://llm/pods?app=&port=1", "k8s://llm/pods?app=&port=1"),
    ("k8s://llm/inferencepool/a.b-c", "k8s://llm/inferencepool/a.b-c"),
]


@pytest.mark.parametrize(("text", "normal"), GOOD)
def test_a_url_has_one_normal_form(text: str, normal: str) -> None:
    assert KubernetesUrl.of(text).url == worker_url(text) == worker_url(normal) == normal
    assert names_several(normal)


def test_the_parts_of_a_url() -> None:
    pods = KubernetesUrl.of("k8s://llm/pods?app=vllm&tier=a&port=http&scheme=https")
    assert (pods.namespace, pods.kind, pods.name, pods.port) == ("llm", ObjectKind.PODS, "", "http")
    assert (pods.selector, pods.is_tls, pods.server_name) == ("app=vllm,tier=a", True, "")
    service = KubernetesUrl.of("k8s://llm/service/vllm:80")
    assert (service.name, service.port, service.server_name) == ("vllm", "80", "vllm.llm.svc")


REFUSED = [
    ("k8s://", "write k8s://NAMESPACE"),
    ("k8s://llm", "write k8s://NAMESPACE"),
    ("k8s://llm/pods?app=vllm&port=1#x", "write k8s://NAMESPACE"),
    ("k8s:///pods?app=vllm&port=1", "'' is not a namespace"),
    ("k8s://LLM/pods?app=vllm&port=1", "'LLM' is not a namespace"),
    ("k8s://a.b/service/vllm", "'a.b' is not a namespace"),
    ("k8s://llm/deployment/vllm", "'deployment' is not a kind"),
    ("k8s://llm/service/", "'' is not the name of an object"),
    ("k8s://llm/service/vllm/x", "write k8s://NAMESPACE"),
    ("k8s://llm/service/a_b", "'a_b' is not the name of an object"),
    ("k8s://llm/service/vllm:0", "0 is not a port"),
    ("k8s://llm/service/vllm:08", "08 is not a port"),
    ("k8s://llm/service/vllm:65536", "65536 is not a port"),
    ("k8s://llm/service/vllm:Http", "neither a port's number nor its name"),
    ("k8s://llm/service/vllm?app=x", "does not take 'app'"),
    ("k8s://llm/service/vllm?scheme=ftp", "neither http nor https"),
    ("k8s://llm/inferencepool/vllm:8000", "is not the name of an object"),
    ("k8s://llm/pods/x?app=vllm&port=1", "selected by labels"),
    ("k8s://llm/pods?app=vllm", "names no port"),
    ("k8s://llm/pods?port=8000", "would select every pod"),
    ("k8s://llm/pods", "names no port"),
    ("k8s://llm/pods?app=a&app=b&port=1", "names 'app' twice"),
    ("k8s://llm/pods?app!=a&port=1", "not the name of a label"),
    ("k8s://llm/pods?app&port=1", "not of the form NAME=VALUE"),
    ("k8s://llm/pods?app=a=b&port=1", "not of the form NAME=VALUE"),
    ("k8s://llm/pods?a%70p=a&port=1", "percent-encoded"),
    ("k8s://llm/pods?app=a,b&port=1", "not the value of a label"),
    ("k8s://llm/pods?/x=a&port=1", "not the name of a label"),
    ("k8s://llm/pods?app=" + "a" * 64 + "&port=1", "not the value of a label"),
    ("k8s://llm/pods?" + "&".join(f"l{i}=x" for i in range(MAX_LABELS + 1)) + "&port=1", "are the most"),
    ("k8s://llm/pods?app=vllm&port=1 ", r"U\+0020"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_other_urls_are_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        worker_url(text)


def test_a_port_is_a_number_or_a_name() -> None:
    assert (port_number("8000"), port_number("http"), port_number("http-2")) == (8000, None, None)
