"""Packages of an installation, and its modules that are machine code. All else is in pyproject.toml.

`kvgate` is the one name that an installation takes: a wheel is built from a copy in which the folders
`gateway` and `engines` are `kvgate.gateway` and `kvgate.engines`; docs/development/packaging.md has the
reasons.

The data path is typed Python, and mypyc compiles it as it stands: a request then costs about half. The
source stays the truth: each module goes into the wheel beside its compiled form. `pip install` of the sdist
or of a checkout compiles where a C compiler is there; pip then fetches mypy, and the dependencies for their
types, into the build's own environment. Else one line of the build's log (`pip install -v`) names the reason,
and the wheel is pure Python, as with GATEWAY_PURE=1. An editable checkout (`pip install -e .`) runs
interpreted. `kvgate --version` names the form that runs.
"""

import os
import shutil
import sys
import sysconfig
import tokenize
import tomllib
from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import takewhile
from multiprocessing.pool import ThreadPool
from pathlib import Path
from tokenize import TokenInfo
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

MYPY = "mypy==2.4.1"
"""The version of `requirements-dev.lock`, which the tests of the wheel use: another may compile otherwise."""
COMPILED = [
    "gateway/proxy/api.py",
    "gateway/server/reverse_proxy.py",
    "gateway/server/upgrade_buffer.py",
    "gateway/http/response_observer.py",
    "gateway/core/value.py",
    "gateway/core/speed.py",
    "gateway/core/decision.py",
    "gateway/core/blocks.py",
    "gateway/server/body_budget.py",
    "gateway/bookings/shared_ledger.py",
    "gateway/tenancy/admission/token_bucket.py",
    "gateway/core/caller.py",
    "gateway/tokenization/conversation_cache.py",
    "gateway/proxy/deadlines.py",
    "gateway/tenancy/admission/drain_rate.py",
    "gateway/core/eligibility.py",
    "gateway/requests/field_judgement.py",
    "gateway/routing/least_squares.py",
    "gateway/core/fleet.py",
    "gateway/core/panic.py",
    "gateway/http/content.py",
    "gateway/http/forwarded.py",
    "gateway/http/framing.py",
    "gateway/http/headers.py",
    "gateway/http/messages.py",
    "gateway/tenancy/auth/api_keys.py",
    "gateway/core/ledger.py",
    "gateway/http/usage_redaction.py",
    "gateway/requests/model_name.py",
    "gateway/core/outcome.py",
    "gateway/bookings/promises.py",
    "gateway/routing/speed_model.py",
    "gateway/core/pd_pairs.py",
    "gateway/tokenization/pieces.py",
    "gateway/tokenization/prompt_encoder.py",
    "gateway/tenancy/admission/fair_queue.py",
    "gateway/routing/query.py",
    "gateway/core/slow_start.py",
    "gateway/http/refusal.py",
    "gateway/http/retry_after.py",
    "gateway/proxy/held_refusal.py",
    "gateway/proxy/accounting.py",
    "gateway/proxy/retryable.py",
    "gateway/core/request.py",
    "gateway/core/token_prompt.py",
    "gateway/requests/parsing.py",
    "gateway/core/route_table.py",
    "gateway/proxy/retries.py",
    "gateway/requests/adapter_field.py",
    "gateway/requests/cache_salt.py",
    "gateway/tenancy/admission/saturation.py",
    "gateway/routing/concurrency.py",
    "gateway/requests/steering.py",
    "gateway/tokenization/render_settings.py",
    "gateway/tokenization/mlx.py",
    "gateway/tokenization/sglang.py",
    "gateway/requests/field_types.py",
    "gateway/tokenization/chat_template.py",
    "gateway/tenancy/admission/tenants.py",
    "gateway/costs/transfer_speed.py",
    "gateway/tokenization/text_cache.py",
    "gateway/disaggregation/failed_pairs.py",
    "gateway/bookings/unconfirmed.py",
    "gateway/http/upgrade.py",
    "gateway/bookings/tenant_usage.py",
    "gateway/core/worker.py",
    "gateway/core/hit_rule.py",
    "gateway/proxy/failures.py",
    "gateway/proxy/exchange.py",
    "gateway/tenancy/admission/request_identity.py",
    "gateway/tenancy/admission/gate.py",
    "gateway/tenancy/admission/queues.py",
    "gateway/tenancy/admission/model_queue.py",
    "gateway/tenancy/admission/zero.py",
    "gateway/tenancy/admission/rejections.py",
    "gateway/index/assumed.py",
    "gateway/index/assumed_tree.py",
    "gateway/index/worker_bits.py",
    "gateway/index/edges.py",
    "gateway/index/followed_tiers.py",
    "gateway/index/holder.py",
    "gateway/index/memory.py",
    "gateway/index/engine_hashes.py",
    "gateway/bookings/shared_assumed.py",
    "gateway/requests/client_body.py",
    "gateway/proxy/intake.py",
    "gateway/tenancy/auth/authenticator.py",
    "gateway/routing/learning.py",
    "gateway/routing/candidates.py",
    "gateway/observability/cache_loss/prompt_similarity.py",
    "gateway/observability/cache_loss/explainer.py",
    "gateway/observability/cache_loss/attribution.py",
    "gateway/observability/cache_loss/block_history.py",
    "gateway/observability/cache_loss/observer.py",
    "gateway/observability/metrics.py",
    "gateway/policies/disaggregation.py",
    "gateway/policies/expected_ttft.py",
    "gateway/costs/token_work.py",
    "gateway/policies/prefix_overlap.py",
    "gateway/costs/cost_model.py",
    "gateway/disaggregation/prefill_leg.py",
    "gateway/models/prompt_source.py",
    "gateway/models/worker_tokenizer.py",
    "gateway/proxy/context.py",
    "gateway/proxy/dispatch.py",
    "gateway/proxy/prompts.py",
    "gateway/bookings/time_slice.py",
    "gateway/upstream/outgoing.py",
    "gateway/upstream/plan.py",
    "gateway/upstream/pools.py",
    "gateway/routing/decision_log.py",
    "gateway/server/responder.py",
    "gateway/proxy/stream_keepalive.py",
    "gateway/epp/responder.py",
    "gateway/epp/envoy_connection.py",
    "gateway/epp/message_fields.py",
    "gateway/epp/messages.py",
    "gateway/epp/processing_request.py",
    "gateway/epp/dynamic_metadata.py",
    "gateway/epp/protocol.py",
    "gateway/epp/wire.py",
    "gateway/server/http2/frames.py",
    "gateway/server/http2/header_block.py",
    "gateway/server/http2/header_decoder.py",
    "gateway/server/http2/header_table.py",
    "gateway/server/http2/huffman.py",
    "gateway/server/http2/request_head.py",
    "gateway/server/http2/limits.py",
    "gateway/server/http2/stream.py",
    "gateway/server/http2/send_queue.py",
    "gateway/server/http2/peer_settings.py",
    "gateway/server/http2/connection.py",
    "gateway/server/http2/events.py",
    "gateway/server/http2/grpc_framing.py",
    "gateway/server/http2/grpc_connection.py",
    "gateway/server/http2/protocol.py",
    "gateway/epp/prefill_booking.py",
    "gateway/epp/fallbacks.py",
    "gateway/epp/control_headers.py",
    "gateway/epp/destination.py",
    "gateway/epp/held_bookings.py",
    "gateway/epp/addresses.py",
    "gateway/epp/door.py",
    "gateway/epp/picker.py",
    "gateway/decide/states.py",
    "gateway/decide/message_bounds.py",
    "gateway/decide/message_parts.py",
    "gateway/decide/requests.py",
    "gateway/decide/replies.py",
    "gateway/decide/reports.py",
    "gateway/decide/decision.py",
    "gateway/decide/services.py",
    "gateway/proxy/responses.py",
    "gateway/routing/router.py",
    "gateway/server/connection.py",
    "gateway/disaggregation/legs.py",
    "gateway/runtime/deadline_timer.py",
    "gateway/proxy/websocket.py",
    "gateway/upstream/connection.py",
    "gateway/observability/verification/usage_sampling.py",
    "gateway/observability/verification/accuracy.py",
    "gateway/parity/live.py",
    "gateway/parity/live_check.py",
    "gateway/observability/verification/verifier.py",
    "gateway/observability/observers.py",
    "gateway/runtime/ids.py",
    "gateway/runtime/paced_reads.py",
    "gateway/core/prediction.py",
    "gateway/core/usage_reading.py",
    "gateway/core/cached_reports.py",
    "gateway/core/session_id.py",
    "gateway/requests/named_session.py",
    "gateway/apis/open_routes.py",
    "gateway/http/json_usage.py",
    "gateway/http/sse.py",
    "gateway/http/usage_injection.py",
    "gateway/proxy/usage_check.py",
    "gateway/tokenization/template_stability.py",
    "gateway/tokenization/conversation_features.py",
    "gateway/tokenization/message_frame.py",
    "gateway/ingest/blind_recovery.py",
    "gateway/index/blind_recovery.py",
    "gateway/index/proofs.py",
    "gateway/models/offload.py",
]
"""The path of a request. None of these modules defines a msgspec struct: the fields' types, which msgspec
reads, are not kept in compiled classes. Left out on purpose: `requests/outline.py`, `requests/large_body.py`,
`requests/abridged.py` and `tokenization/nested_json.py` run in threads, where machine code would keep the
interpreter lock from the first step to the last; `routing/prompt_limit.py` serves long prompts only, and
takes 1.4 us for eight workers either way.
"""
FOLDERS = ("gateway", "engines")
"""Folders of the repository that lie in `kvgate` in a wheel."""
COPY = Path("build", "sources")
OF_COPY = {"bdist_wheel", "build", "build_ext", "build_py", "dist_info", "install"}
"""Commands of setuptools that work on the copy."""
LIBRARY = "kvgate"
"""Name of the library of all compiled modules, to which mypyc adds `__mypyc`."""
TYPES = f"""
[mypy]
mypy_path = {COPY}
follow_imports = skip
ignore_missing_imports = True

[mypy-kvgate.*,aiohttp.*,google.*,httptools.*,jinja2.*,msgspec.*]
follow_imports = silent
"""
"""Packages that mypy reads: ours, and those that compiled modules import. Reading all others takes 23 s more,
and makes the same code."""


def packages() -> dict[str, Any]:
    """Packages for setuptools: a copy of them for a wheel, these folders for an sdist or an editable one."""
    data = {"": ["py.typed", "*.lua", "tokenizer/*", "static/*", "vendor/*"]}
    if not OF_COPY.intersection(sys.argv):
        names = [f"{each}{below}" for each in ("kvgate", *FOLDERS) for below in ("", ".*")]
        return {"packages": find_packages(include=names), "package_data": data}
    copy_sources()
    return {"packages": find_packages(str(COPY)), "package_dir": {"": str(COPY)}, "package_data": data}


def copy_sources() -> None:
    """Write the packages of a wheel below COPY."""
    shutil.rmtree(COPY, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree("kvgate", COPY / "kvgate", ignore=ignored)
    for folder in FOLDERS:
        shutil.copytree(folder, COPY / "kvgate" / folder, ignore=ignored)
    for path in (*COPY.rglob("*.py"), *COPY.rglob("*.pyi")):
        path.write_text(below_kvgate(path.read_text(encoding="utf-8")), encoding="utf-8")


def below_kvgate(source: str) -> str:
    """Source of a module as a wheel has it: what it imports of `gateway` and `engines` is imported of
    `kvgate.gateway` and `kvgate.engines`, under the same names. All else stays, line by line.

    Raises ValueError for an import that cannot be written so on its line: `import gateway.x` binds `gateway`.
    """
    lines = StringIO(source).readlines()
    left_out = (tokenize.COMMENT, tokenize.NL)
    tokens = [each for each in tokenize.generate_tokens(iter(lines).__next__) if each.type not in left_out]
    for at, token in reversed(list(enumerate(tokens))):
        begins = at == 0 or _is_between_statements(tokens[at - 1])
        if begins and token.string in ("from", "import") and (edit := _edit_of(tokens[at:])):
            changed, text = edit
            row, begin, end = changed.start[0] - 1, changed.start[1], changed.end[1]
            lines[row] = lines[row][:begin] + text + lines[row][end:]
    return "".join(lines)


def _is_between_statements(token: TokenInfo) -> bool:
    return token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT) or token.string in (":", ";")


def _edit_of(statement: Sequence[TokenInfo]) -> tuple[TokenInfo, str] | None:
    """The token of an import that changes, and its new text. `statement` begins with the import."""
    keyword, name = statement[:2]
    if keyword.string == "from":
        return (name, f"kvgate.{name.string}") if name.string in FOLDERS else None
    words = [each.string for each in takewhile(lambda each: not _is_between_statements(each), statement)]
    pairs = zip(words, words[1:], strict=False)
    if not any(word in FOLDERS and before in ("import", ",") for before, word in pairs):
        return None
    if len(words) == 2:
        return keyword, "from kvgate import"
    if "," not in words and words[-2] == "as":
        return name, f"kvgate.{name.string}"
    raise ValueError(f"line {keyword.start[0]}: {' '.join(words)}: import it with `from` or `as`")


def extensions() -> list[Extension]:
    """Modules to compile. A wheel that is built without any has one line with the reason in its log."""
    if not {"bdist_wheel", "build_ext"}.intersection(sys.argv):
        return []
    if reason := reason_not_to_compile():
        return _pure(reason)
    try:
        from mypyc.build import mypycify
    except ImportError:
        return _pure("mypy is not installed")
    config = Path("build", "mypyc.ini")
    config.parent.mkdir(exist_ok=True)
    config.write_text(TYPES)
    arguments = [f"--config-file={config}", *(str(COPY / "kvgate" / path) for path in COMPILED)]
    options = {"opt_level": "2", "debug_level": "0", "multi_file": True, "group_name": LIBRARY}
    try:
        compiled: list[Extension] = mypycify(arguments, **options)
    except (SystemExit, Exception) as exc:  # noqa: BLE001 it exits where it finds errors; installing must not fail
        return _pure(f"mypyc failed: {exc!r}")
    for extension in compiled:
        extension.optional = True  # a compiler that fails leaves the modules as they are
    return compiled


class BuildModules(build_ext):
    """Build of the library, which has a C file for each module, and then of the stubs that import from it.

    setuptools compiles the files of one extension one after another; here all cores take part.
    """

    def build_extensions(self) -> None:
        library, *stubs = self.extensions
        compile_files = self.compiler.compile
        if self.compiler.compiler_type == "unix":  # else each call of a function goes through a table
            library.extra_compile_args.append("-fvisibility=hidden")
        with ThreadPool() as cores:

            def compile_at_once(sources: Iterable[str], **options: Any) -> list[str]:
                return sum(cores.map(lambda source: compile_files([source], **options), sources, 1), [])

            self.compiler.compile = compile_at_once
            self.extensions = [library]
            super().build_extensions()
        self.compiler.compile, self.parallel = compile_files, True
        # Stubs without their library would hide the modules' source and fail.
        self.extensions = stubs if Path(self.get_ext_fullpath(library.name)).exists() else []
        super().build_extensions()


def reason_not_to_compile() -> str:
    """Reason why nothing can or shall be compiled; empty where it can."""
    if os.environ.get("GATEWAY_PURE"):
        return "GATEWAY_PURE is set"
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(command) is None:
        return f"no C compiler ({command})"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "no Python.h (package python3-dev)"
    return ""


def build_requirements() -> list[str]:
    """Packages that pip fetches for a build of its own: mypy, and the dependencies, for their types."""
    if reason_not_to_compile():
        return []
    project = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text())
    return [MYPY, *project["project"]["dependencies"]]


def _pure(reason: str) -> list[Extension]:
    print(f"kvgate: not compiled, a request takes twice the CPU: {reason}", file=sys.stderr)
    return []


setup(
    **packages(),  # first: what is compiled is the copy that this makes
    ext_modules=extensions(),
    setup_requires=build_requirements(),
    cmdclass={"build_ext": BuildModules},
)
