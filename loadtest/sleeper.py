"""Wake-up delay of this machine: `python -m loadtest.sleeper`, until its input ends.

Beside a figure of stalls it shows the machine's own part. Its only line of output is the worst, in
milliseconds, in looks as often as the gateway's own (`gateway/runtime/loop_lag.py`).
"""

import sys
import threading
import time
from collections.abc import Callable

from gateway.runtime.loop_lag import INTERVAL_S


def worst_ms(
    is_over: Callable[[], bool],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    worst = 0.0
    while not is_over():
        due = clock() + INTERVAL_S
        sleep(INTERVAL_S)
        worst = max(worst, clock() - due)
    return worst * 1000


def main() -> None:
    reading = threading.Thread(target=sys.stdin.read, daemon=True)
    reading.start()
    print(f"{worst_ms(lambda: not reading.is_alive()):.3f}")


if __name__ == "__main__":
    main()
