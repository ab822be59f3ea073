"""Lines of the demo on a terminal, and elsewhere."""

import io

from gateway.demo.score import Score
from gateway.demo.view import ScoreView


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_table_that_is_redrawn() -> None:
    out = Terminal()
    view = ScoreView(Score("kvgate"), Score("round robin"), out)
    view.show()
    assert out.getvalue().count("TTFT p90") == 1
    assert "A" not in out.getvalue().replace("TTFT", "")
    view.show()
    assert "\x1b[8A" in out.getvalue()  # up by the height of the table


def test_plain_lines_have_no_control_characters() -> None:
    out = io.StringIO()
    view = ScoreView(Score("kvgate"), Score("round robin"), out)
    view.show()
    view.show()
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("\n") == 2
    assert view.interval_s > ScoreView(Score("a"), Score("b"), Terminal()).interval_s
