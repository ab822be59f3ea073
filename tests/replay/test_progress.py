import io

from gateway.replay.progress import CLEAR, LINE_S, REDRAW_S, Progress, RunCounts


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Seconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_has_one_line_that_is_redrawn_and_removed() -> None:
    out, seconds = Terminal(), Seconds()
    progress = Progress(out, seconds)
    for number in range(9):
        progress.show(lambda n=number: f"state {n}")  # type: ignore[misc]
        seconds.now += REDRAW_S / 4
    progress.end()
    assert out.getvalue() == f"{CLEAR}kvgate replay: state 4{CLEAR}kvgate replay: state 8{CLEAR}"


def test_elsewhere_a_line_comes_now_and_then() -> None:
    out, seconds = io.StringIO(), Seconds()
    progress = Progress(out, seconds)
    for number in range(9):
        progress.show(lambda n=number: f"state {n}")  # type: ignore[misc]
        seconds.now += LINE_S / 4
    progress.end()
    assert out.getvalue() == "kvgate replay: state 4\nkvgate replay: state 8\n"


def test_a_short_replay_shows_nothing() -> None:
    out = Terminal()
    progress = Progress(out, lambda: 0.0)
    progress.show(lambda: "state")
    progress.end()
    assert out.getvalue() == ""


def test_counts_of_all_runs_are_added() -> None:
    counts = RunCounts(2)
    assert counts.text() == "0%, 0 requests, 0 of 2 runs done"
    counts.set(0, 4, 4)
    counts.set(1, 1, 4)
    assert counts.text() == "62%, 5 requests, 1 of 2 runs done"
