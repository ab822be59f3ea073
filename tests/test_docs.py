"""Files, headings, paths, flags and metrics that the documentation names exist."""

import argparse
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.sim import add_flags
from gateway import cli
from gateway.config import Config
from gateway.config.reading import convert
from gateway.processes.metric_reference import SPECS
from gateway.replay.command import add_arguments
from tests import ROOT

FOLDERS = ("docs", "changelog.d", "examples")
PAGES = sorted(
    path.relative_to(ROOT)
    for path in (*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")))
)
PRESENT = [page for page in PAGES if page != Path("docs/development/history.md")]
"""Pages that describe what there is."""
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
BROKEN = re.compile(r"^### Breaking\n.*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)
PATH = re.compile(
    r"`((?:gateway|engines|kvgate|tests|loadtest|docs|deploy|proto|examples|changelog\.d)/[\w./-]*\w)/?`"
)
MADE = {"loadtest/results"}
"""Folders that commands make."""


def _prose(page: Path) -> str:
    return FENCE.sub("", (ROOT / page).read_text())


def _present(page: Path) -> str:
    """Text of a page that describes what there is: of changes the newest version's, without what broke."""
    text = (ROOT / page).read_text()
    if page.name == "CHANGELOG.md":
        return BROKEN.sub("", "## ".join(text.split("\n## ")[:2]))
    return "" if page.name.endswith(".breaking.md") else text


def _anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub and the site make them."""
    headings = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", text) for text in HEADING.findall(_prose(page)))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in LINK.findall(_prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        linked = (ROOT / page.parent / name).resolve().relative_to(ROOT) if name else page
        assert (ROOT / linked).exists(), f"{page}: {target}"
        assert not anchor or anchor in _anchors(linked), f"{page}: no heading for {target}"


def test_the_index_leads_to_each_page() -> None:
    linked = set(LINK.findall(_prose(Path("docs/index.md"))))
    benchmarks = {f"benchmarks/{name}" for name in LINK.findall(_prose(Path("docs/benchmarks/index.md")))}
    pages = {str(page.relative_to("docs")) for page in PAGES if page.parts[0] == "docs"}
    assert pages - linked - benchmarks - {"index.md"} == set()


@pytest.mark.parametrize("page", PRESENT, ids=str)
def test_paths_in_the_text_exist(page: Path) -> None:
    missing = {name for name in PATH.findall(_present(page)) if not (ROOT / name).exists()}
    assert missing <= MADE, f"{page}: {missing}"


OTHERS_FLAGS = frozenset(
    [
        "api-key",
        "retry",  # curl, with the two below
        "retry-delay",
        "retry-all-errors",
        "api-server-count",
        "attention-backend",
        "compilation-config",
        "dtype",
        "generation-config",
        "gpu-memory-utilization",
        "kv-cache-memory-bytes",
        "load-format",
        "prefix-caching-hash-algo",
        "chat-template",
        "disaggregation-mode",
        "enable-cache-report",
        "enable-lora",
        "cache-ram",  # llama.cpp
        "go",  # protoc, with the one below
        "go-grpc",
        "metrics",
        "enable-metrics",
        "enable-prompt-tokens-details",
        "kv-events-config",
        "kv-transfer-config",
        "max-model-len",
        "max-num-batched-tokens",
        "max-num-seqs",
        "max-num-queued-tokens",
        "max-queued-requests",
        "model-path",
        "otlp-traces-endpoint",
        "served-model-name",
        "shutdown-timeout",
        "tokenizer-mode",
        "uds",
        "concurrency",
        "endpoint-type",
        "extra-inputs",
        "output-tokens-mean",
        "prefix-prompt-length",
        "prompt-cache-size",  # MLX
        "prefix-prompt-pool-size",
        "random-seed",
        "request-count",
        "streaming",
        "synthetic-input-tokens-mean",
        "use-server-token-count",
        "require-hashes",
        "server",
        "tool",
        "url",
        "set",  # Helm
        "from",  # uvx
        "spec",  # pipx
        "build",  # Docker
        "build-arg",
        "build-context",
        "owner",  # gh
        "now",  # systemctl
    ]
)
"""Flags of engines, load generators and other programs that the documentation shows."""
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from (flag.removeprefix("--") for flag in action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _flags(command)


def _known_flags() -> set[str]:
    sim, replay = argparse.ArgumentParser(), argparse.ArgumentParser()
    add_flags(sim)
    add_arguments(replay)
    return {flag for parser in (cli._parser(), sim, replay) for flag in _flags(parser)}


@pytest.mark.parametrize("page", PRESENT, ids=str)
def test_flags_in_the_text_exist(page: Path) -> None:
    unknown = set(FLAG.findall(_present(page))) - _known_flags() - OTHERS_FLAGS
    assert not unknown, f"{page}: {sorted(unknown)}"


IMAGE = re.compile(r"!\[[^]]+\]\(([^)\s]+)\)")
MAX_IMAGE_BYTES = 120_000


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_images_are_there_and_small(page: Path) -> None:
    for name in IMAGE.findall(_prose(page)):
        if "://" not in name:
            assert (ROOT / page.parent / name).stat().st_size <= MAX_IMAGE_BYTES, f"{page}: {name}"


METRIC = re.compile(r"\bkvgate_[a-z0-9_]*[a-z0-9](?![a-z0-9_*])")


@pytest.mark.parametrize("page", PRESENT, ids=str)
def test_metrics_in_the_text_exist(page: Path) -> None:
    known = set(METRIC.findall((ROOT / "docs/reference/metrics.md").read_text()))
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name in METRIC.findall(_present(page))}
    assert shown <= known, f"{page}: {sorted(shown - known)}"


TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILES = [(page, text) for page in PAGES for text in TOML.findall((ROOT / page).read_text())]


@pytest.mark.parametrize(("page", "text"), FILES, ids=[f"{page}-{i}" for i, (page, _) in enumerate(FILES)])
def test_configuration_files_in_the_text_are_accepted(page: Path, text: str) -> None:
    values = tomllib.loads(text)
    if "prefill_tokens_per_s" not in values:  # a profile of `kvgate replay`
        convert(values, Config, str(page))


def test_the_page_of_commands_has_each_command() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    parser = cli._parser()
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    assert [name for name in commands.choices if f"`kvgate {name}" not in page] == []


COMMAND = re.compile(r"(?:[\w/.-]*/)?kvgate (?:--\S+ )*([a-z][a-z-]*)")
TARGETS = re.compile(r"make((?: [a-z][a-z-]*)+)")
SETTING = re.compile(r"""\b[A-Z_]+=(?:"[^"]*"|\S*) ?""")


def _code(page: Path) -> Iterator[str]:
    """Code spans of a page, and commands of its blocks."""
    text = _present(page)
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for block in FENCE.findall(text):
        yield from block.splitlines()


@pytest.mark.parametrize("page", PRESENT, ids=str)
def test_commands_in_the_text_exist(page: Path) -> None:
    (commands,) = (each for each in cli._parser()._actions if isinstance(each, argparse._SubParsersAction))
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for code in _code(page):
        if found := COMMAND.match(code):
            assert found[1] in commands.choices, f"{page}: {code}"
        if found := TARGETS.match(SETTING.sub("", code)):
            assert set(found[1].split()) <= targets, f"{page}: {code}"


LABELS = re.compile(r"\b(kvgate_[a-z0-9_]+)\{([^}]*)\}")
DECLARED = {spec.name: set(spec.labels) for spec in SPECS}


@pytest.mark.parametrize("page", PRESENT, ids=str)
def test_labels_of_metrics_in_the_text_exist(page: Path) -> None:
    for name, labels in LABELS.findall(_present(page)):
        metric = re.sub("_(bucket|sum|count)$", "", name)
        shown = {label.partition("=")[0].strip() for label in labels.split(",")} - {"le"}
        assert shown <= DECLARED.get(metric, shown), f"{page}: {name}{{{labels}}}"
