"""Figure `day.auth_cpu_us`: the extra cost of a request with a key that the gateway looks up.

Measured where it is spent (`day_auth_inside`): three gateways in one process, in the interpreter that is
measured (the wheel's), take the same requests in turn, 200 at a time: with no keys, with a key file, and with
salts too. A slow machine slows all three; the difference of the medians is the figure, of two rounds the
better.

Beside it, as a check, `day.auth_gateway_ratio`: three whole gateways with the same C workers, loaded in turn.
There a key is a fiftieth of a request, and on a shared machine less than the noise.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.app import bundled_tokenizer
from gateway.tenancy.auth.api_keys import ID_DIGITS, NUM_SALT_BYTES, NUM_SECRET_BYTES, make_key
from gateway.tenancy.auth.key_format import format_key_record
from loadtest.contenders import GatewayContender, fake_workers, gateway
from loadtest.extent import extent
from loadtest.fleet import GATEWAY
from loadtest.instruments import BenchError, LoadgenLoad
from loadtest.instruments import measure as put_load
from loadtest.publisher import write_prompts
from loadtest.report import Figure, best_of, publish
from loadtest.workloads.bodies import Texts, small

CHAT = "/v1/chat/completions"
NUM_WORKERS = 2
NUM_KEYS = 1000
NUM_BODIES = extent(2_000, 15_000)
"""Bodies of a slice: more than it can send, so that none is sent twice."""
ROUNDS = extent(1, 2)
SLICES = extent(2, 6)
SLICE_S = extent(0.2, 1.0)
CONNECTIONS = 16
GOAL = 3.0
PLAIN, KEYED, SALTED = "plain", "keyed", "salted"


@dataclass(slots=True)
class AuthCost:
    """Cost of one gateway in one round."""

    cpu_us: float = 0.0
    num_requests: int = 0

    @property
    def per_request_us(self) -> float:
        return self.cpu_us / self.num_requests


Round = Mapping[str, AuthCost]


def made_in(directory: Path) -> tuple[str, str, str]:
    """Key among a thousand, their file, and a file with a secret."""
    keys = [make_key(os.urandom(ID_DIGITS // 2), os.urandom(NUM_SECRET_BYTES)) for _ in range(NUM_KEYS)]
    file, secret = directory / "keys", directory / "secret"
    lines = (format_key_record(key, os.urandom(NUM_SALT_BYTES), f"t{n}", ["m"]) for n, key in enumerate(keys))
    file.write_text("\n".join(lines))
    secret.write_text(os.urandom(32).hex())
    return keys[NUM_KEYS // 2].decode(), str(file), str(secret)


def run(directory: Path, num_rounds: int = ROUNDS, slice_s: float = SLICE_S) -> list[Round]:
    """Measure the rounds. Raises BenchError and InstrumentError."""
    prompts = directory / "prompts"
    texts = Texts("m", seed=1)
    write_prompts(prompts, [])
    key, file, secret = made_in(directory)
    keyed = ["--key-file", file]
    flags: Mapping[str, list[str]] = {
        PLAIN: [],
        KEYED: keyed,
        SALTED: [*keyed, "--tenant-salt-file", secret],
    }
    load = LoadgenLoad(CHAT, CONNECTIONS, slice_s, warm_up_s=0.2, key=key)
    with ExitStack() as stack:
        ports = stack.enter_context(fake_workers(NUM_WORKERS, 5, prompts))
        gateways = {
            name: stack.enter_context(gateway(ports, bundled_tokenizer(), *more))
            for name, more in flags.items()
        }
        return [one_round(gateways, _bodies(directory, texts), load) for _ in range(num_rounds)]


def _bodies(directory: Path, texts: Texts) -> Iterator[Path]:
    """A file for each slice; all gateways get the same."""
    path = directory / "bodies"
    for _ in range(SLICES):
        small(texts, NUM_BODIES).write(path)
        yield path


def one_round(gateways: Mapping[str, GatewayContender], files: Iterator[Path], load: LoadgenLoad) -> Round:
    """Measure one round; the first gateway of a slice is last in the next."""
    costs = {name: AuthCost() for name in gateways}
    for number, bodies in enumerate(files):
        turn = list(gateways.items())
        for name, contender in turn if number % 2 == 0 else reversed(turn):
            reading = put_load(contender.port, bodies, load, contender.pids)
            if reading.num_errors or not reading.num_requests:
                raise BenchError(f"{name}: {reading.num_requests} answered, {reading.num_errors} failed")
            costs[name].cpu_us += reading.cpu_us
            costs[name].num_requests += reading.num_requests
    costs_text = ", ".join(f"{name} {cost.per_request_us:.2f} us" for name, cost in costs.items())
    print(f"a request costs: {costs_text}")
    return costs


def inside() -> list[Mapping[str, float]]:
    """Microseconds of a request by name, of each round, in the interpreter that is measured. Raises
    BenchError."""
    command = [GATEWAY[0], "-P", "-m", "loadtest.day_auth_inside"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise BenchError(f"nothing was measured: {done.stderr[-500:]}")
    return msgspec.json.decode(done.stdout, type=list[dict[str, float]])


def figures(medians: Sequence[Mapping[str, float]], rounds: Sequence[Round]) -> Iterator[Figure]:
    added = [each[KEYED] - each[PLAIN] for each in medians]
    yield best_of("day.auth_cpu_us", "us", GOAL, added)
    salted = [each[SALTED] - each[PLAIN] for each in medians]
    yield best_of("day.auth_with_salt_cpu_us", "us", None, salted)
    ratios = [each[KEYED].per_request_us / each[PLAIN].per_request_us for each in rounds]
    yield best_of("day.auth_gateway_ratio", "", None, ratios)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="kvgate-auth-") as directory:
        return list(figures(inside(), run(Path(directory))))


if __name__ == "__main__":
    publish("day-auth", measure())
    sys.exit(0)
