"""Benchmark `make bench-templates`: prompts of many chat templates and tokens of many vocabularies, beside an
engine's own.

Each template renders the corpus of chats, whole and turn by turn, and each vocabulary encodes odd texts. The
reference is vLLM's code in the python of VLLM_PYTHON or `.venv-vllm`, and without one what vLLM and
transformers made of this repository's templates and vocabularies when they were asked. TEMPLATES=DIR: a
folder of *.jinja and tokenizer_config.json in place of the templates at hand. TOKENIZERS=DIR: folders with a
tokenizer.json, beside the vocabularies at hand.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway import request
from gateway.app import bundled_tokenizer
from gateway.core.token_runs import TokenRunCache
from gateway.tokenization.prompt_encoder import PromptEncoder, PromptError
from loadtest.extent import extent
from loadtest.odd_texts import odd_texts
from loadtest.report import Figure, publish
from tests.support import corpus
from tests.support.corpus import Body
from tests.support.tokenizer_models import GOLDEN, KINDS, TEXTS, digest, write_model

ROOT = Path(__file__).parents[1]
INSIDE = Path(__file__).with_name("templates_inside.py")
NUM_TEXTS = extent(40, 2_010)
STRIDE = extent(12, 1)
"""Chats of the corpus for each that is measured."""
MAX_CHARS = extent(10_000, 10_000, 1 << 30)
"""Characters of a chat as JSON; the longest of the corpus take most of the time."""
NUM_TEMPLATES = extent(3, 1 << 20)
MAX_PREFIXES = 4
"""Earlier turns of a chat that are asked for before it, as its client did."""
NUM_SHOWN = 10
MARKER = re.compile(r"<\|[\w .-]{1,40}\|>|<｜[^｜<>]{1,40}｜>|<[a-z_]{1,30}>|\[/?[A-Z_]{2,30}\]|</s>")
"""Text of a template that is a special token of its model, most probably."""
MAX_MARKERS = 64
Ids = Sequence[int] | None
"""Tokens of a prompt; None for a body that is refused."""
Answers = Iterator[Mapping[str, Any]]
"""Lines of the reference: a template or a model, with the tokens of each body or text."""


@dataclass(slots=True)
class Tally:
    """Counts of a comparison; `shown` has the first differences in words."""

    num_sources: int = 0
    num_equal: int = 0
    num_different: int = 0
    num_grown_different: int = 0
    num_refused: int = 0
    num_refused_here: int = 0
    num_refused_there: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, name: str, what: str, ours: Any, theirs: Any, grown: Any = None) -> None:
        """Count a prompt: whole (`ours`) and, where it is one, as a chat that `grown` turn by turn."""
        if theirs is None or ours is None:
            self.num_refused += theirs is None and ours is None
            self.num_refused_here += theirs is not None
            self.num_refused_there += ours is not None
            if theirs is not None:
                self.show(f"{name}: refused here alone: {what}")
            return
        self.num_equal += ours == theirs
        self.num_different += ours != theirs
        self.num_grown_different += grown is not None and grown != theirs
        if ours != theirs or grown not in (None, theirs):
            self.show(f"{name}: differs: {what}")

    def show(self, words: str) -> None:
        if len(self.shown) < NUM_SHOWN:
            self.shown.append(words)


def main() -> None:
    with TemporaryDirectory() as folder:
        models = {name: str(made_model(Path(folder) / f"t{n}", source))
                  for n, (name, source) in enumerate(sources().items())}  # fmt: skip
        vocabularies = vocabularies_at_hand(Path(folder))
        python, texts = python_of_engine(), odd_texts(NUM_TEXTS)
        if python is None:
            name, templates, tokens = recorded(models, vocabularies)
        else:
            given = {"templates": models, "chats": chats(), "models": vocabularies, "texts": texts}
            name, templates, tokens = measured(python, given, Path(folder) / "answers")
        print(f"reference: {name}")
        for tally in (templates, tokens):
            print(*tally.shown, sep="\n", end="\n" if tally.shown else "")
        publish("bench_templates", figures_of(templates, tokens))


def figures_of(templates: Tally, tokens: Tally) -> list[Figure]:
    rows: Sequence[tuple[str, int, str, float | None]] = (
        ("templates", templates.num_sources, "templates", None),
        ("templates.prompts", templates.num_equal + templates.num_different, "prompts", None),
        ("templates.differ", templates.num_different, "prompts", 0),
        ("templates.differ.turn_by_turn", templates.num_grown_different, "prompts", 0),
        ("templates.refused_by_both", templates.num_refused, "bodies", None),
        ("templates.refused_here", templates.num_refused_here, "bodies", None),
        ("templates.refused_there", templates.num_refused_there, "bodies", None),
        ("vocabularies", tokens.num_sources, "files", None),
        ("vocabularies.texts", tokens.num_equal + tokens.num_different, "texts", None),
        ("vocabularies.differ", tokens.num_different, "texts", 0),
    )
    return [Figure(name, float(value), unit, goal, [float(value)]) for name, value, unit, goal in rows]


# what is compared


def chats() -> list[Body]:
    """Chats of the corpus that are measured."""
    return [body for body in corpus.CHATS if is_measured(body)][::STRIDE]


def is_measured(body: Body) -> bool:
    """True unless the engine cuts the chat after rendering, or it is too long for this run."""
    return "truncate_prompt_tokens" not in body and len(json.dumps(body)) <= MAX_CHARS


def sources() -> dict[str, str]:
    """Templates by name: those of TEMPLATES, else this repository's and those of the packages at hand."""
    if folder := os.environ.get("TEMPLATES"):
        found = dict(templates_in(Path(folder)))
    else:
        found = dict(templates_in(corpus.TEMPLATES))
        for packages in packages_at_hand():
            for folder_of_package in sorted(packages.glob("*/**/chat_templates")) if packages else ():
                found |= dict(templates_in(folder_of_package))
    if not found:
        sys.exit("TEMPLATES: no *.jinja and no tokenizer_config.json with a chat_template in this folder")
    return dict(list(found.items())[:NUM_TEMPLATES])


def packages_at_hand() -> list[Path]:
    python = python_of_engine()
    return sorted(python.parents[1].glob("lib/python3*/site-packages")) if python else []


def templates_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Names and texts of a folder's templates, with those of the folders in it."""
    for path in sorted(folder.rglob("*.jinja")):
        yield str(path.relative_to(folder).with_suffix("")), path.read_text("utf-8")
    for path in sorted(folder.rglob("tokenizer_config.json")):
        given = json.loads(path.read_text("utf-8")).get("chat_template")
        named = given if isinstance(given, list) else [{"name": "default", "template": given}]
        for each in named:
            if isinstance(each["template"], str):
                yield f"{path.parent.relative_to(folder)}:{each['name']}", each["template"]


def made_model(directory: Path, source: str) -> Path:
    """Model with a template, the bundled vocabulary, and the template's markers as special tokens."""
    directory.mkdir()
    bundled = bundled_tokenizer()
    (directory / "tokenizer.json").write_bytes((bundled / "tokenizer.json").read_bytes())
    config = json.loads((bundled / "tokenizer_config.json").read_text("utf-8"))
    known = {
        each["content"] for each in json.loads((bundled / "tokenizer.json").read_bytes())["added_tokens"]
    }
    markers = [each for each in dict.fromkeys(MARKER.findall(source)) if each not in known][:MAX_MARKERS]
    config["added_tokens_decoder"] = config.get("added_tokens_decoder", {}) | {
        str(8192 + n): {"content": each, "special": True, "normalized": False}
        for n, each in enumerate(markers)
    }
    config["chat_template"] = source
    (directory / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return directory


def vocabularies_at_hand(folder: Path) -> dict[str, str]:
    """Directories of vocabularies by name: one of each tokenizer class, and those of TOKENIZERS."""
    made = {kind: str(write_model(folder / f"v{n}", kind)) for n, kind in enumerate(KINDS)}
    given = Path(os.environ.get("TOKENIZERS") or folder / "none")
    return made | {
        str(path.parent.relative_to(given)): str(path.parent)
        for path in sorted(given.rglob("tokenizer.json"))
    }


def python_of_engine() -> Path | None:
    """Python of vLLM; None where there is none."""
    given = os.environ.get("VLLM_PYTHON")
    python = Path(given or ROOT / ".venv-vllm" / "bin" / "python").absolute()
    if given and not python.exists():
        sys.exit(f"VLLM_PYTHON: {given} does not exist")
    return python if python.exists() else None


# the comparison


def measured(python: Path, given: Mapping[str, Any], path: Path) -> tuple[str, Tally, Tally]:
    """Name of the reference in a python, and the comparisons with it."""
    templates, tokens, name = Tally(), Tally(), ""
    for answer in answers_of(python, given, path):
        name = answer.get("reference", name)
        if template := answer.get("template"):
            compare_template(templates, template, Path(given["templates"][template]), answer["ids"], chats())
        if model := answer.get("model"):
            compare_tokens(tokens, model, Path(given["models"][model]), answer["ids"], given["texts"])
    return name, templates, tokens


def answers_of(python: Path, given: Mapping[str, Any], path: Path) -> Answers:
    """Lines that the reference prints; `path` is a file for them."""
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with path.open("wb") as out, path.with_suffix(".log").open("wb") as log:
        done = subprocess.run(
            [str(python), "-P", str(INSIDE)],
            input=json.dumps(given).encode(),
            stdout=out,
            stderr=log,
            env=os.environ | quiet,
        )
    if done.returncode:
        sys.exit(f"the reference failed:\n{path.with_suffix('.log').read_text('utf-8')[-3000:]}")
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.startswith('{"'))


def compare_template(
    tally: Tally,
    name: str,
    directory: Path,
    theirs: Sequence[Any],
    bodies: Sequence[Body],
    now: datetime | None = None,
    form: Callable[[Ids], Any] = lambda ids: ids,
) -> None:
    """Count the prompts of one template; `form` brings tokens into the reference's form."""
    tally.num_sources += 1
    try:
        prompts = PromptEncoder.load(directory)
    except PromptError as exc:
        for body, ids in zip(bodies, theirs, strict=True):
            tally.add(name, f"{exc}; {corpus.name_of(body)}", None, ids)
        return
    now = now or datetime.now()
    prompts.remember(TokenRunCache(), now, lambda what: tally.show(f"{name}: proof was wrong: {what}"))
    for body, ids in zip(bodies, theirs, strict=True):
        whole, grown = whole_of(prompts, body, now), grown_of(prompts, body, now)
        tally.add(name, corpus.name_of(body), _formed(whole, form), ids, _formed(grown, form))


def _formed(ids: Ids, form: Callable[[Ids], Any]) -> Any:
    return None if ids is None else form(ids)


def whole_of(prompts: PromptEncoder, body: Body, now: datetime) -> Ids:
    try:
        return prompts.chat(body, now).tolist()
    except PromptError:
        return None


def grown_of(prompts: PromptEncoder, body: Body, now: datetime) -> Ids:
    """Tokens of a chat after requests with its earlier turns."""
    messages, ids = body["messages"], None
    ends = [n for n in range(1, len(messages)) if messages[n].get("role") != "tool"][-MAX_PREFIXES:]
    for end in (*ends, len(messages)):
        asked = request("/v1/chat/completions", {"model": "m", **body, "messages": messages[:end]})
        try:
            ids = prompts.tokens(asked, now).tokens.tolist()
        except PromptError:
            ids = None
    return ids


def compare_tokens(
    tally: Tally,
    name: str,
    directory: Path,
    theirs: Sequence[Any],
    texts: Sequence[str],
    form: Callable[[Ids], Any] = lambda ids: ids,
) -> None:
    """Count the texts of one vocabulary."""
    tally.num_sources += 1
    prompts = PromptEncoder.load(directory, "{{ messages[0].content }}")
    for text, ids in zip(texts, theirs, strict=True):
        tally.add(name, ascii(text[:60]), form(prompts.encode(text, True).tolist()), ids)


def recorded(models: Mapping[str, str], vocabularies: Mapping[str, str]) -> tuple[str, Tally, Tally]:
    """Comparison with the digests of this repository, of its own templates and vocabularies."""
    golden, templates, tokens = corpus.golden(), Tally(), Tally()
    for name in [name for name in models if name in golden.chats]:
        kept = [
            (body, None if theirs == "-" else theirs)
            for body, theirs in list(zip(corpus.CHATS, golden.chats[name], strict=True))[::STRIDE]
            if theirs != "?" and is_measured(body)
        ]
        bodies, theirs = [body for body, _ in kept], [each for _, each in kept]
        directory = Path(models[name])
        (directory / "tokenizer_config.json").write_text(_bundled_with(directory), "utf-8")
        compare_template(templates, name, directory, theirs, bodies, golden.asked_at, corpus.digest)
    made = json.loads(GOLDEN.read_text("utf-8"))
    for name in [name for name in vocabularies if name in made]:
        compare_tokens(tokens, name, Path(vocabularies[name]), made[name]["digests"], TEXTS, _digest)
    return f"recorded, {golden.engine}", templates, tokens


def _digest(ids: Ids) -> str:
    return digest(ids or ())


def _bundled_with(directory: Path) -> str:
    """Configuration of the bundled model with the template of another."""
    config = json.loads((bundled_tokenizer() / "tokenizer_config.json").read_text("utf-8"))
    own = json.loads((directory / "tokenizer_config.json").read_text("utf-8"))
    return json.dumps({**config, "chat_template": own["chat_template"]})


if __name__ == "__main__":
    main()
