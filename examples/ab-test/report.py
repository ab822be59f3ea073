"""Compare the policies of an A/B test on a running gateway: `python report.py http://127.0.0.1:9400`."""

import json
import sys
from typing import Any
from urllib.request import Request, urlopen


def view_of(admin_url: str, key: str = "") -> dict[str, Any]:
    """Return the gateway's own view of its policies. `key` is needed where the admin port has keys."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with urlopen(Request(f"{admin_url}/admin/policies", headers=headers), timeout=10) as answer:
        view: dict[str, Any] = json.load(answer)
    return view


def lines_of(view: dict[str, Any]) -> list[str]:
    """Return a row for each policy: its share of the sessions, and what came of its requests."""
    lines = [f"{'policy':20} {'share':>6} {'requests':>9} {'failed':>7} {'p50':>8} {'p90':>8} {'hits':>6}"]
    for score in view["scores"]:
        p50, p90 = seconds(score["ttft_p50_s"]), seconds(score["ttft_p90_s"])
        hits = "-" if score["hit_rate"] is None else f"{score['hit_rate']:.0%}"
        counts = f"{score['requests']:9} {score['failed_requests']:7}"
        lines.append(f"{score['name']:20} {score['share']:6.0%} {counts} {p50:>8} {p90:>8} {hits:>6}")
    for shadow in view["shadow"]:
        agreed, compared = shadow["agreed"], shadow["compared"]
        lines.append(
            f"{shadow['name']} would have chosen the same worker in {agreed} of {compared} decisions"
        )
    return lines


def seconds(value: float | None) -> str:
    """Return a time to first token for people; a policy without requests has none."""
    return "-" if value is None else f"{value:.3f} s"


if __name__ == "__main__":
    print("\n".join(lines_of(view_of(*sys.argv[1:3]))))
