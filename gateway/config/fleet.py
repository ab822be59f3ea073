"""Tables `[fleet]`, `[disaggregation]` and `[lifecycle]`: workers, prefill and decode, probes and
ejection."""

from typing import Annotated

import msgspec

from gateway.config.options import AT_ONCE, REQUESTS, Section, option


class FleetSection(Section, frozen=True):
    worker: Annotated[
        list[str],
        option(
            "Base URL of a worker; repeat the flag for each. dns+http(s)://NAME:PORT stands for all "
            "addresses of a name, k8s://NAMESPACE/service/NAME for the pods of a Service "
            "(docs/guides/kubernetes.md). More can join at run time through the admin API. kvgate "
            "discovers everything else from the worker. An engine that does not report the ports of its KV "
            "events may have them behind its URL: http://10.0.0.1:8000#events_port=5558&replay_port=6558.",
            "URL",
            live=AT_ONCE,
            is_common=True,
        ),
    ] = msgspec.field(default_factory=list)
    prefill: Annotated[
        list[str],
        option(
            "Base URL of a prefill worker (vLLM's kv_producer). A worker that reports another role is "
            "rejected.",
            "URL",
            live=AT_ONCE,
        ),
    ] = msgspec.field(default_factory=list)
    decode: Annotated[
        list[str],
        option(
            "Base URL of a decode worker (vLLM's kv_consumer): it answers from prompts that prefill workers "
            "computed, or computes them itself where that is sooner.",
            "URL",
            live=AT_ONCE,
        ),
    ] = msgspec.field(default_factory=list)
    engine: Annotated[
        list[str],
        option(
            "Engine of the workers: vllm, sglang, trtllm, llamacpp, mlx or openai (any other server with "
            "OpenAI's API), or URL=NAME for one worker. By default kvgate detects each worker's, and a fleet "
            "may mix them.",
            "name",
        ),
    ] = msgspec.field(default_factory=list)
    connector: Annotated[
        list[str],
        option(
            "KV connector between prefill and decode workers: nixl, mooncake, shared_storage (vLLM), "
            "bootstrap (SGLang) or context (TensorRT-LLM), or URL=NAME for one worker. By default the "
            "engine's own: nixl for vLLM.",
            "name",
        ),
    ] = msgspec.field(default_factory=list)
    topology: Annotated[
        list[str],
        option(
            "URL=LABEL, the location of a worker, widest part first, as in "
            "http://10.0.0.1:8000=rack2/host7. Each part that two workers do not share makes a transfer "
            "between them cost more.",
            "label",
            is_rare=True,
        ),
    ] = msgspec.field(default_factory=list)
    location: Annotated[
        str,
        option(
            "Location of this gateway, labelled as workers' are, for the filter `topology`: rack2/host7.",
            "label",
            live=REQUESTS,
            is_rare=True,
        ),
    ] = ""


class DisaggregationSection(Section, frozen=True):
    mode: Annotated[
        list[str],
        option(
            "Use of prefill workers for prompts: auto (where the predicted TTFT is lower, counting the "
            "delay for running answers), always or never; or MODEL=MODE for one model. Without it: auto.",
            "mode",
            flag="disaggregation",
        ),
    ] = msgspec.field(default_factory=list)
    prefill_timeout_s: Annotated[
        float,
        option(
            "Timeout of the prefill leg; then another prefill worker is tried, and then the decode worker "
            "computes the prompt. Long prompts and queues take their time.",
            "seconds",
            gt=0,
            live=REQUESTS,
            is_rare=True,
        ),
    ] = 60.0


class LifecycleSection(Section, frozen=True):
    probe_interval_s: Annotated[
        float,
        option("Interval of health probes and load scrapes of a worker.", "seconds", gt=0, live=AT_ONCE),
    ] = 2.0
    probe_timeout_s: Annotated[
        float,
        option("Timeout of one probe; a busy engine's /metrics can take a second.", "seconds", gt=0),
    ] = 5.0
    slow_start_s: Annotated[
        float,
        option(
            "Slow start: the time in which a worker that joins a running fleet, or comes back to it, grows "
            "from a tenth of its fair share of requests to all of it. Its cache is empty, and an idle worker "
            "would get every request. 0: none.",
            "seconds",
            ge=0,
            is_rare=True,
        ),
    ] = 10.0
    eject_after_failures: Annotated[
        int,
        option(
            "Outlier ejection: consecutive failed requests (connection refused, closed or aborted, or 5xx) "
            "after which a worker gets no requests for a while, although its probes succeed. The last worker "
            "of a model stays, and failures of requests that fail everywhere count against none. 0: never.",
            "requests",
            ge=0,
        ),
    ] = 5
    eject_s: Annotated[
        float,
        option(
            "Duration of the first ejection; each repeated failure after readmission doubles it, up to 5 "
            "minutes.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 10.0
    max_ejected_percent: Annotated[
        float,
        option(
            "Share of a model's workers that may be ejected for failed requests at the same time; at least "
            "one may be. Stalled workers and those that accept no connection in time are ejected beyond it, "
            "but never the last worker of a model.",
            "percent",
            ge=0,
            le=100,
            is_rare=True,
        ),
    ] = 10.0
    stalled_after_s: Annotated[
        float,
        option(
            "Time without an engine step, with requests present, after which a worker is stalled: it gets no "
            "requests, and its waiting ones go elsewhere, until steps move again. Read from the counters of "
            "vLLM's /metrics. 0: never.",
            "seconds",
            ge=0,
            is_rare=True,
        ),
    ] = 60.0
    panic_threshold_percent: Annotated[
        float,
        option(
            "Panic threshold: share of a model's workers that must be healthy. Below it, workers with probes "
            "that time out get requests all the same, as long as they accept connections: so many late pages "
            "are a sign of load, or of a slow network. Workers that refuse connections get none. 0: never.",
            "percent",
            ge=0,
            le=100,
            is_rare=True,
        ),
    ] = 50.0
    dns_interval_s: Annotated[
        float,
        option(
            "Interval of DNS lookups of dns+http(s)://NAME:PORT, where each address is a worker. A worker "
            "without its address drains; a failed lookup changes nothing.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 10.0
