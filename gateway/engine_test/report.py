"""Findings of a conformance test, for people and as JSON. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Verdict(Enum):
    """Result of one question. OK: as kvgate assumes. UNSUPPORTED: not offered, and kvgate works without it,
    less well. FAIL: kvgate would serve requests wrongly, or believe what is false. INCONCLUSIVE: the answers
    prove nothing."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    FAIL = "FAIL"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class EngineFinding:
    """Answer to one question. `observed` is what the worker did, `consequence` what follows for requests;
    empty where nothing does."""

    question: str
    verdict: Verdict
    observed: str
    consequence: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of one worker; `subject` names it, its engine and its version."""

    subject: str
    findings: Sequence[EngineFinding]

    @property
    def is_usable(self) -> bool:
        """True unless a finding is FAIL."""
        return all(finding.verdict is not Verdict.FAIL for finding in self.findings)

    def lines(self) -> list[str]:
        width = max((len(finding.question) for finding in self.findings), default=0)
        lines = [self.subject]
        for finding in self.findings:
            lines.append(f"  {finding.verdict.value:<14}{finding.question:<{width}}  {finding.observed}")
            if finding.consequence:
                lines.append(f"  {'':<14}{'':<{width}}  → {finding.consequence}")
        counts = [(verdict, sum(f.verdict is verdict for f in self.findings)) for verdict in Verdict]
        lines.append("  " + ", ".join(f"{num} {verdict.value}" for verdict, num in counts if num))
        return lines

    def fields(self) -> dict[str, Any]:
        """The report as a value for JSON."""
        findings = [
            {
                "question": finding.question,
                "result": finding.verdict.name.lower(),
                "observed": finding.observed,
                "consequence": finding.consequence,
            }
            for finding in self.findings
        ]
        return {"subject": self.subject, "usable": self.is_usable, "findings": findings}
