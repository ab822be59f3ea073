"""Log lines that a worker or a client can cause any number of: one per subject and interval, summed. Pure."""

from collections import OrderedDict

EVERY_S = 60.0
MAX_SUBJECTS = 1024
"""The least recent is forgotten beyond that, and may be logged again at once."""


class Limited:
    """How often each subject was to be logged, and when it was."""

    def __init__(self, every_s: float = EVERY_S, max_subjects: int = MAX_SUBJECTS) -> None:
        self._every_s = every_s
        self._max_subjects = max_subjects
        self._known: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __repr__(self) -> str:
        return f"Limited({len(self._known)} subjects)"

    def count(self, subject: str, now: float) -> int:
        """Called for each time; how many times a line should report now, 0 where none is due."""
        logged_s, num = self._known.get(subject, (None, 0))
        is_due = logged_s is None or now - logged_s >= self._every_s
        self._known[subject] = (now, 0) if logged_s is None or is_due else (logged_s, num + 1)
        self._known.move_to_end(subject)
        if len(self._known) > self._max_subjects:
            self._known.popitem(last=False)
        return num + 1 if is_due else 0
