"""Tables `[policy]` and `[policies.NAME]`: the choice of a worker."""

from typing import Annotated

import msgspec

from gateway.config.options import REQUESTS, Section, option


class PolicySection(Section, frozen=True):
    name: Annotated[
        str,
        option(
            "Policy that chooses a worker: a name from docs/guides/policies.md, of [policies.NAME], of "
            "--policy-file or of a package. auto: the file's, else expected_ttft.",
            "name",
            flag="policy",
            live=REQUESTS,
            is_common=True,
        ),
    ] = "auto"
    file: Annotated[
        str,
        option(
            "Python file with a policy or parts of one, see docs/guides/policies.md; --policy auto uses its "
            "policy. Reloaded on SIGHUP; a broken file leaves the active policy in place.",
            "path",
            live=REQUESTS,
        ),
    ] = ""
    budget_ms: Annotated[
        float,
        option(
            "Time limit of one decision of a policy that is not built in; beyond it three times in a row, "
            "least load decides for a while. Decisions block the event loop: 5 ms is ten times a decision "
            "among 1,000 workers.",
            "milliseconds",
            gt=0,
            live=REQUESTS,
        ),
    ] = 5.0
    ab: Annotated[
        dict[str, float],
        option(
            "POLICY=SHARE of an A/B test, as in expected_ttft=90 and prefix_overlap=10: each policy gets its "
            "share of the sessions, in place of --policy. Results are on /admin/policies.",
            "share",
            live=REQUESTS,
        ),
    ] = msgspec.field(default_factory=dict)
    shadow: Annotated[
        list[str],
        option(
            "Shadow policy: its choices and predictions are compared with what happened, on "
            "/admin/policies, and route nothing.",
            "name",
            live=REQUESTS,
        ),
    ] = msgspec.field(default_factory=list)
    medium_worth: Annotated[
        list[str],
        option(
            "MEDIUM=SHARE: what a cached block in that medium saves, relative to 1 for the GPU. CPU is 0.8, "
            "others 0.5.",
            "share",
            live=REQUESTS,
            is_rare=True,
        ),
    ] = msgspec.field(default_factory=list)
