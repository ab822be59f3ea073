"""Second pass of a test run: each failed test is run once more, alone, in a fresh process.

A test that passes then is flaky: it is reported with the outputs of both runs and does not fail the run,
unless more than MAX_FLAKY are. `python -m pytest -p tests.support.second_pass` has it, plain pytest has not.
A worker process of pytest-xdist that dies reports the test that it ran as failed: that one is run again too.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import dead_workers

MAX_FLAKY = 5
MAX_TRIED = 20  # failed tests beyond which there is no second pass: so many are no accident
MAX_SHOWN = 2_000  # last characters of a flaky test's failure that are shown; all of it is in OUTPUTS
OUTPUTS = Path(".cache/flaky")


class SecondPass:
    """Plugin of the process that reports the results: the only one, or the one above xdist's workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failures: dict[str, list[pytest.TestReport]] = {}
        self._outputs: dict[str, Path] = {}
        self._refusal = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failures.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Run the failed tests again, once the worker processes have ended."""
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not self._failures:
            return
        if len(self._failures) > MAX_TRIED:
            self._refusal = f"no second pass: {len(self._failures)} tests failed, more than {MAX_TRIED}"
            return
        for nodeid, reports in self._failures.items():
            if output := self._pass_of(nodeid):
                self._outputs[nodeid] = self._written(nodeid, reports, output)
        self._report_flaky()
        if len(self._outputs) > MAX_FLAKY:
            self._refusal = f"{len(self._outputs)} tests are flaky, more than {MAX_FLAKY}: the run failed"
        elif len(self._outputs) == len(self._failures):
            session.exitstatus = pytest.ExitCode.OK

    def _pass_of(self, nodeid: str) -> str:
        """Output of a second run in which the test passed, else an empty text; a failure is printed."""
        print(f"\nsecond pass: {nodeid}", flush=True)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", nodeid]
        done = subprocess.run(
            command, cwd=self._config.rootpath, stdin=subprocess.DEVNULL, capture_output=True
        )
        output = done.stdout.decode(errors="replace")
        if done.returncode:
            print(f"{output}failed again: {nodeid}", flush=True)
        return "" if done.returncode else output

    def _written(self, nodeid: str, reports: list[pytest.TestReport], output: str) -> Path:
        """File with the outputs of both runs."""
        name = "".join(each if each.isalnum() else "_" for each in nodeid)[:200]
        path = self._config.rootpath / OUTPUTS / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = [
            part for report in reports for part in ((report.when, report.longreprtext), *report.sections)
        ]
        first = "\n".join(f"--- {title} ---\n{text}" for title, text in parts)
        path.write_text(f"{nodeid}\n\n=== failed ===\n{first}\n\n=== passed, alone ===\n{output}")
        return path

    def _report_flaky(self) -> None:
        """Count the flaky tests in the closing line by that name, and no longer as failed."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if not self._outputs or reporter is None:
            return
        for category in ("failed", "error"):
            reports = reporter.stats.pop(category, [])
            if left := [report for report in reports if report.nodeid not in self._outputs]:
                reporter.stats[category] = left
        reporter.stats["flaky"] = [self._failures[nodeid][0] for nodeid in self._outputs]
        reporter._set_main_color()  # which finds the categories of the closing line, too

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._outputs:
            terminalreporter.section("flaky: failed, and passed alone")
        for nodeid, path in self._outputs.items():
            terminalreporter.line(f"FLAKY {nodeid}: {path.relative_to(self._config.rootpath)}")
            terminalreporter.line(reason(self._failures[nodeid][0].longreprtext))
        if self._refusal:
            terminalreporter.line(self._refusal, red=True)


def reason(failure: str) -> str:
    """End of a failure's text, after the errors that come before it: the last often hides the first."""
    before = failure[:-MAX_SHOWN].splitlines()
    return "\n".join([*(line for line in before if line.startswith("E  ")), failure[-MAX_SHOWN:]])


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        dead_workers.install()
        config.pluginmanager.register(SecondPass(config), "second-pass")
