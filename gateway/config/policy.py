"""The options of how a worker is chosen; all are fields of `Config`."""

from typing import Annotated

import msgspec

from gateway.config.fleet import Fleet
from gateway.config.options import option
from gateway.policies.composition import Composition


class Choosing(Fleet, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policy: Annotated[
        str,
        option(
            "How a worker is chosen: a name from docs/guides/policies.md, of [policies.NAME], of "
            "--policy-file or of a package. auto: the file's, else expected_ttft.",
            "name",
        ),
    ] = "auto"
    policies: Annotated[
        dict[str, Composition],
        option(
            "[policies.NAME]: policies composed of filters, weighted scorers and a picker, or of filters and "
            "another policy; see docs/guides/policies.md."
        ),
    ] = msgspec.field(default_factory=dict)
    policy_file: Annotated[
        str,
        option(
            "Python file with a policy or parts of one, see docs/guides/policies.md; --policy auto takes its "
            "policy. Read anew on SIGHUP; one that is broken then changes nothing.",
            "path",
        ),
    ] = ""
    policy_budget_ms: Annotated[
        float,
        option(
            "For one decision of a policy that is not shipped; then it goes by least load. Nobody is served "
            "meanwhile: five times what a decision among 1,000 workers may take.",
            "milliseconds",
            gt=0,
        ),
    ] = 5.0
    ab: Annotated[
        dict[str, float],
        option(
            "POLICY=SHARE, as in expected_ttft=90 and prefix_overlap=10: each policy gets its share of the "
            "sessions, in place of --policy. Results are on /admin/policies.",
            "share",
        ),
    ] = msgspec.field(default_factory=dict)
    shadow: Annotated[
        list[str],
        option(
            "A policy that only looks on: what it would have chosen, and what it predicted, beside what "
            "happened, on /admin/policies.",
            "name",
        ),
    ] = msgspec.field(default_factory=list)
    medium_worth: Annotated[
        list[str],
        option("MEDIUM=SHARE: what a block there saves of a GPU one's 1; CPU=0.8, else 0.5.", "share"),
    ] = msgspec.field(default_factory=list)
    place: Annotated[
        str,
        option(
            "Where this gateway stands, in the words of --topology, for the filter `topology`: rack2/host7.",
            "label",
        ),
    ] = ""
    session_header: Annotated[
        str,
        option(
            "Header that names a request's session, for policies that keep sessions together and for --ab; "
            "goes before the cookie and the field `user`. Empty: none does.",
            "name",
            pattern="^[A-Za-z0-9!#$%&'*+.^_`|~-]*$",
        ),
    ] = "x-session-id"
    session_cookie: Annotated[
        str,
        option(
            "Cookie that names it, as your application sets it. Empty: none does.",
            "name",
            pattern="^[A-Za-z0-9!#$%&'*+.^_`|~-]*$",
        ),
    ] = ""
