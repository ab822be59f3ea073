"""Every source file has its test file, and files and functions stay short."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
TEST_MODULES = sorted(TESTS.rglob("test_*.py"))
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 40

NO_TEST_OF_THEIR_OWN = {
    "kvgate/testing.py": "tests/test_kvgate.py, with the rest of the package",
    "gateway/core/kv_connector.py": "types only; the connectors keep its promises in test_kv_connectors.py",
    "gateway/tokenization/base.py": "types only; the renderers keep its promises",
    "gateway/apis/anthropic.py": "tests/apis/test_to_chat.py, beside the golden answers of the engine",
    "gateway/apis/responses.py": "tests/apis/test_to_chat.py, beside the golden answers of the engine",
    "gateway/core/usage.py": "types only; tests/core/test_usage_reading.py decodes them",
    "gateway/core/engine.py": "types only; the adapters keep its promises in tests/engines/test_contract.py",
    "gateway/admin/request_fields.py": "types only; tests/admin/test_fields.py",
    "gateway/admin/pool_fields.py": "types only; tests/admin/test_fields.py",
    "gateway/app/parts/pool_objects.py": "tests/blackbox/test_pool_objects.py runs all of it",
    "gateway/admin/advice_fields.py": "types only; tests/admin/test_fields.py, tests/scaling/test_report.py",
    "gateway/policies/composition.py": "types only",
    "gateway/core/kv_events.py": "types only",
    "gateway/observability/recording.py": "types only; tests/observability/test_recorder.py",
    "gateway/replication/messages.py": "types only",
    "engines/sim/pd/leg.py": "types only",
    "gateway/proto/kvgate/v1/decide_pb2.py": "generated; tests/test_proto.py, tests/decide",
    "gateway/proto/kvgate/v1/kv_events_pb2.py": "generated; tests/test_proto.py",
    "gateway/proto/kvgate/v1/ext_proc_pb2.py": "generated; tests/test_proto.py, tests/epp/test_messages.py",
    "gateway/proto/kvgate/v1/external_scaler_pb2.py": "generated; tests/test_proto.py, tests/scaling",
    "gateway/server/http2/service.py": "types only",
    "gateway/server/http2/events.py": "types only; tests/server/http2/test_connection.py",
    "gateway/config/epp.py": "tests/config/test_options.py reads every table",
    "gateway/config/scaling.py": "tests/config/test_options.py reads every table",
    "gateway/config/warming.py": "tests/config/test_options.py reads every table",
    "gateway/config/kubernetes.py": "tests/config/test_options.py reads every table",
    "gateway/index/base.py": "types only; the backends keep its promises in tests/index/contract.py",
    "gateway/processes/messages.py": "types only",
    "gateway/tenancy/admission/base.py": "types only",
    "gateway/ingest/base.py": "types only",
    "gateway/replication/leader.py": "tests/stories/test_replica.py runs all of it, with gateways and Redis",
    "gateway/replication/replica_feed.py": "tests/stories/test_replica.py",
    "gateway/replication/session.py": "tests/stories/test_replica.py",
    "gateway/replication/redis_link.py": "tests/stories/test_replica.py, tests/stories/test_lost_redis.py",
    "gateway/bookings/sync.py": "tests/stories/test_booking.py runs all of it, with gateways and Redis",
    "gateway/replication/tree_feed.py": "tests/stories/test_tree.py",
    "gateway/proxy/responses.py": "tests/blackbox/test_responses.py runs all of it",
    "gateway/proxy/context.py": "tests/proxy/test_dispatch.py and test_exchange.py run all of it",
    "gateway/upstream/plan.py": "types only; tests/proxy and tests/disaggregation run each kind of plan",
    "gateway/processes/child.py": "tests/blackbox/test_processes.py runs all of it, in processes of its own",
    "gateway/app/gateway_parts.py": "tests/blackbox, tests/stories; tests/app/test_component_list.py",
    "gateway/app/component.py": "types only; tests/app/test_component_list.py",
    "gateway/app/parts/adapters.py": "tests/commands/test_lora.py, tests/admin/test_lora.py",
    "gateway/app/parts/api.py": "tests/blackbox/test_surface.py, tests/admin/test_explain.py",
    "gateway/app/parts/cache_loss.py": "tests/stories/test_loss.py",
    "gateway/app/parts/certificates.py": "tests/blackbox/test_tls.py",
    "gateway/app/parts/credentials.py": "tests/blackbox/test_keys.py",
    "gateway/app/parts/event_streams.py": "tests/stories/test_fleet.py, test_ownership.py",
    "gateway/app/parts/fleet.py": "tests/stories/test_fleet.py",
    "gateway/app/parts/front_door.py": "tests/blackbox",
    "gateway/app/parts/grpc_ports.py": "tests/envoy runs all of it, before a real Envoy; tests/epp its parts",
    "gateway/app/parts/index.py": "tests/app/test_index_backend.py, tests/stories/test_replica.py",
    "gateway/app/parts/lifecycle.py": "tests/stories/test_worker.py",
    "gateway/app/parts/listening_sockets.py": "tests/app/test_gateway.py",
    "gateway/app/parts/open_requests.py": "tests/stories/test_flow.py, tests/stories/test_split.py",
    "gateway/app/parts/policies.py": "tests/app/test_reconfigure.py, tests/blackbox/test_policies.py",
    "gateway/app/parts/process_counts.py": "tests/blackbox/test_admin.py",
    "gateway/app/parts/prompts.py": "tests/stories/test_model.py",
    "gateway/app/parts/proofs.py": "tests/blackbox/test_sglang_limits.py",
    "gateway/app/parts/recording.py": "tests/observability/test_recorder.py, tests/stories/test_trace.py",
    "gateway/app/parts/reloads.py": "tests/stories/test_reload.py",
    "gateway/app/parts/requests.py": "tests/blackbox, tests/stories/test_flow.py",
    "gateway/app/parts/roster.py": "tests/stories/test_worker.py, tests/blackbox/test_worker_tls.py",
    "gateway/app/parts/routing.py": "tests/stories/test_fleet.py, test_split.py",
    "gateway/app/parts/scaling.py": "tests/blackbox/test_scaling.py runs all of it",
    "gateway/app/parts/shared_bookings.py": "tests/stories/test_booking.py",
    "gateway/app/parts/telemetry.py": "tests/stories/test_trace.py",
    "gateway/app/parts/traffic.py": "tests/admin/console/test_traffic.py",
    "gateway/app/parts/upstream.py": "tests/stories/test_worker.py",
    "gateway/app/parts/verification.py": "tests/stories/test_verify.py",
    "gateway/app/parts/warming.py": "tests/stories/test_warming.py, tests/blackbox/test_warming.py",
    "gateway/app/parts/worker_access.py": "tests/stories/test_worker.py, tests/blackbox/test_worker_tls.py",
    "gateway/app/parts/worker_sources.py": "tests/blackbox/test_kubernetes.py",
    "gateway/commands/check_run.py": "tests/commands/test_check.py, and tests/stories/test_verify.py",
}
"""Sources without a test file of their own, beside `__init__` and `__main__`, which contain no logic."""

PARTS_OF_MANY_ROOMS = {
    "base": "the interfaces of a room",
    "client": "requests to a service: Redis, the Kubernetes API, Decide",
    "connection": "one connection of a protocol: a client's, a worker's, HTTP/2",
    "messages": "messages of the room's protocol, or what a room reads of them",
    "metrics": "metrics of the room's subject",
    "protocol": "state machine of a protocol: HTTP/2, ext_proc",
    "report": "a result as text",
    "responder": "answers of a request's front end",
    "service": "what a server carries",
    "sockets": "sockets of the room: listening ones, ZeroMQ",
    "stats": "counts and what was learnt beside them",
    "stream": "one stream of a connection",
}
ONE_THING_IN_TWO_ROOMS = {
    "decision": "a decision, and the call of the decision service that makes it",
    "engine": "an engine's interface, and its twin in virtual time",
    "exchange": "a request's way, and its twin in virtual time",
    "fleet": "the known workers, and their twin in virtual time",
    "responses": "/v1/responses: its bodies, and its plans",
    "sglang": "SGLang's dialect of chats, and its prompts",
}
"""File names that stand more than once below gateway/, and what they mean."""

SLEEPS = {
    "tests/mlx/test_gateway.py:test_one_slow_answer_keeps_no_requests_from_its_worker": "an answer's delay",
    "tests/stories/test_shared_healing.py:test_all_gateways_know_a_hot_prefix_after_two_requests": (
        "the gateway's own time between two requests that prove a block; nothing shows its end"
    ),
    "tests/vllm/test_healing.py:test_each_hot_prefix_is_known_after_two_requests": "likewise",
}
"""Tests that sleep, and why. A sleep that only makes up for a missing event belongs to `until`."""

LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for top in ("kvgate", "gateway", "engines")
    for path in (ROOT / top).rglob("*.py")
)


def _test_of(source: str) -> Path:
    """Test file of a source: tests/ mirrors gateway/, and tests/engines mirrors engines/."""
    path = Path(source.removeprefix("gateway/"))
    return ROOT / "tests" / path.with_name(f"test_{path.name}")


def _functions(source: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse((ROOT / source).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{source}:{node.name}", node.end_lineno - node.lineno + 1


def test_every_source_file_has_its_test_file() -> None:
    sources = [path for path in SOURCES if not path.endswith("__.py")]
    without = [path for path in sources if not _test_of(path).is_file() and path not in NO_TEST_OF_THEIR_OWN]
    assert len(sources) > 400 and without == [], "write " + " ".join(map(str, map(_test_of, without)))


def test_the_map_of_a_folder_names_its_files() -> None:
    paths = [ROOT / source for source in SOURCES if source.startswith("gateway/")]
    mapped = [
        path
        for path in paths
        if not (path.name.startswith("__") or path.parent == ROOT / "gateway" or "proto" in path.parts)
    ]
    left_out = [
        path.relative_to(ROOT).as_posix()
        for path in mapped
        if not re.search(rf"\b{path.stem}\b", (path.parent / "__init__.py").read_text())
    ]
    assert len(mapped) > 400 and left_out == [], "name each in the docstring of its folder's __init__.py"


def test_the_map_of_the_helpers_names_their_files() -> None:
    paths = [path for path in (TESTS / "support").rglob("*.py") if not path.name.startswith(("__", "test_"))]
    left_out = [
        path.relative_to(ROOT).as_posix()
        for path in paths
        if not re.search(rf"\b{path.stem}\b", (path.parent / "__init__.py").read_text())
    ]
    assert len(paths) > 80 and left_out == [], "name each in the docstring of tests/support/__init__.py"


def _imported(tree: ast.AST) -> Iterator[str]:
    """Names of the modules and of what is imported from them, dotted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_test_module_is_imported() -> None:
    """Helpers of several tests are in tests/support, in a conftest, or in a file of their own beside them."""
    names = {path.with_suffix("").relative_to(ROOT).as_posix().replace("/", ".") for path in TEST_MODULES}
    found = [
        f"{path.relative_to(ROOT)}: {imported}"
        for top in ("tests", "loadtest")
        for path in (ROOT / top).rglob("*.py")
        for imported in _imported(ast.parse(path.read_text()))
        if not names.isdisjoint((imported, imported.rpartition(".")[0]))
    ]
    assert len(names) > 600 and found == []


def test_imports_are_found_in_each_form() -> None:
    source = "import a.b\ndef f():\n    from a import test_c\n    from a.test_d import e\n"
    assert list(_imported(ast.parse(source))) == ["a.b", "a.test_c", "a.test_d.e"]


def test_both_maps_of_the_house_name_every_room_and_no_other() -> None:
    rooms = sorted(path.parent.name for path in (ROOT / "gateway").glob("*/__init__.py"))
    _, _, behind = (ROOT / "CONTRIBUTING.md").read_text().partition("```\ncli, library\n")
    for drawing in (behind.partition("```")[0], (ROOT / "gateway" / "__init__.py").read_text()):
        named = re.findall(r"(?:^ *|  )([a-z_]+)/", drawing, re.MULTILINE)
        assert len(rooms) > 25 and sorted(named) == rooms


def test_a_plain_noun_names_one_file() -> None:
    """A name that stands twice says nothing of a subject: it must be a part that many rooms have, or be about
    one thing in both. Files of `config` are named for tables, those of `commands` for commands, and those of
    `app/parts` for the rooms that they put together."""
    places = defaultdict(list)
    for source in SOURCES:
        path = Path(source)
        if (
            path.parts[0] == "gateway"
            and path.parts[1] not in ("config", "commands")
            and path.parts[1:-1] != ("app", "parts")
            and "_" not in path.stem
        ):
            places[path.stem].append(source)
    twice = {stem: found for stem, found in places.items() if len(found) > 1}
    assert twice.keys() == {*PARTS_OF_MANY_ROOMS, *ONE_THING_IN_TWO_ROOMS}, twice


def _sleeps(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Tests that sleep, by name and line. `sleep(0)` is none: it is one turn of the loop."""
    for test in ast.walk(tree):
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_"):
            for node in ast.walk(test):
                if (
                    isinstance(node, ast.Call)
                    and ast.unparse(node.func) in ("asyncio.sleep", "time.sleep", "sleep")
                    and ast.unparse(node.args[0]) != "0"
                ):
                    yield test.name, node.lineno


def test_no_test_sleeps() -> None:
    """A test waits for what it needs to see: `until` and others of tests/support/patience.py."""
    found = {
        f"{path.relative_to(ROOT)}:{name}": line
        for path in TEST_MODULES
        for name, line in _sleeps(ast.parse(path.read_text()))
    }
    assert found.keys() == SLEEPS.keys(), found


def test_sleeps_are_found_in_tests_and_what_is_nested_in_them() -> None:
    source = "async def test_a():\n    await asyncio.sleep(1)\n    await asyncio.sleep(0)\n"
    nested = "def helper():\n    sleep(1)\ndef test_b():\n    def f():\n        time.sleep(X)\n"
    assert list(_sleeps(ast.parse(source + nested))) == [("test_a", 2), ("test_b", 8)]


def test_compiled_modules_define_no_struct() -> None:
    """msgspec reads the types of a struct's fields, and compiled classes keep none."""
    for source in _compiled():
        tree = ast.parse((ROOT / source).read_text())
        bases = [
            ast.unparse(base)
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for base in node.bases
        ]
        assert "msgspec.Struct" not in bases, source


def test_compiled_coroutines_name_each_kind_of_exception_differently() -> None:
    """mypyc keeps a coroutine's caught exceptions in attributes by name, each of the first type caught."""
    for source in _compiled():
        for node in ast.walk(ast.parse((ROOT / source).read_text())):
            if isinstance(node, ast.AsyncFunctionDef):
                names = [n.name for n in ast.walk(node) if isinstance(n, ast.ExceptHandler) and n.name]
                assert len(names) == len(set(names)), f"{source}:{node.name}"


def _compiled() -> list[str]:
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED":
            return list(ast.literal_eval(node.value))
    raise AssertionError("setup.py names no modules")


def test_no_file_is_long() -> None:
    num_lines = {source: len((ROOT / source).read_text().splitlines()) for source in SOURCES}
    long = {source: num for source, num in num_lines.items() if num > MAX_FILE_LINES}
    assert long.keys() <= LONG_FILES.keys(), long


def test_no_function_is_long() -> None:
    sizes = [size for source in SOURCES for size in _functions(source)]
    long = {name: num for name, num in sizes if num > MAX_FUNCTION_LINES}
    assert len(sizes) > 2000 and long.keys() <= LONG_FUNCTIONS.keys(), long


def test_listed_exceptions_are_existing_files() -> None:
    listed = [*NO_TEST_OF_THEIR_OWN, *LONG_FILES, *(name.partition(":")[0] for name in LONG_FUNCTIONS)]
    assert [source for source in listed if source not in SOURCES] == []


def test_each_test_of_an_ignored_folder_has_a_marker() -> None:
    """`make test` imports no test of these folders: all of them need more than a checkout, and say so."""
    (ignored,) = re.findall(r"^IGNORED := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for folder in (ROOT / "tests" / name for name in ignored.split()):
        marks_all = folder / "conftest.py"
        if not (marks_all.is_file() and "add_marker" in marks_all.read_text()):
            unmarked = [path for path in folder.glob("test_*.py") if "pytestmark" not in path.read_text()]
            assert folder.is_dir() and unmarked == []
