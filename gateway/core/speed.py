"""The speed of a worker, as `routing/speed_model.py` learns it from finished requests.

An engine that batches continuously computes prompts in pieces, between the tokens of the answers that run
there. Until the first token of a request it takes

    start_s + answers that run there · start_seq_s
            + tokens ahead and its own · (token_s + answers that run there · seq_s)

and each prompt token that is computed meanwhile makes an answer that runs there longer by `harm_s`.
"""

import math
from typing import Final, final

from mypy_extensions import mypyc_attr

from gateway.core.value import Value


@final
@mypyc_attr(acyclic=True)
class Speed(Value):
    """start_s   what a request waits for besides its prompt: the network, the step that runs, its first token
    start_seq_s   what each answer that runs there adds to that: its tokens come in the same steps
    token_s   computing one prompt token where nothing else runs
    seq_s     what each answer that runs there adds to that
    step_s, step_seq_s   between two tokens of an answer that runs alone, and what each other one adds
    harm_s    what computing one prompt token delays an answer by
    answer_tokens   of its answers lately
    max_running   answers that it runs at once; infinite where that is not known
    gap_s     between two tokens of its answers lately, with the prompts that were computed meanwhile
    """

    __match_args__ = (
        "start_s",
        "token_s",
        "seq_s",
        "step_s",
        "step_seq_s",
        "harm_s",
        "start_seq_s",
        "answer_tokens",
        "max_running",
        "gap_s",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        start_s: float = 0.02,
        token_s: float = 1 / 8000,
        seq_s: float = 0.0,
        step_s: float = 0.02,
        step_seq_s: float = 0.0,
        harm_s: float = 0.0,
        start_seq_s: float = 0.0,
        answer_tokens: float = 200.0,
        max_running: float = math.inf,
        gap_s: float = 0.0,
    ) -> None:
        self.start_s: Final = start_s
        self.token_s: Final = token_s
        self.seq_s: Final = seq_s
        self.step_s: Final = step_s
        self.step_seq_s: Final = step_seq_s
        self.harm_s: Final = harm_s
        self.start_seq_s: Final = start_seq_s
        self.answer_tokens: Final = answer_tokens
        self.max_running: Final = max_running
        self.gap_s: Final = gap_s

    def prefill_token_s(self, num_in_flight: float) -> float:
        """Seconds for one prompt token beside so many requests; those beyond `max_running` wait. Under steady
        load `token_s` and `seq_s` are known in sum only: one alone differs between equal workers."""
        seconds: float = self.token_s + min(num_in_flight, self.max_running) * self.seq_s
        return seconds

    def ttft_s(self, num_tokens: float, num_running: int) -> float:
        """Seconds until the first token of a request, with `num_tokens` to be computed until then."""
        start_s = self.start_s + num_running * self.start_seq_s
        return start_s + num_tokens * (self.token_s + num_running * self.seq_s)

    def wait_s(self, num_in_flight: int) -> float:
        """Seconds until enough answers have ended for a request that comes now."""
        num_behind = num_in_flight + 1 - self.max_running
        return num_behind * self.interval_s(self.max_running) if num_behind > 0 else 0.0

    def interval_s(self, num_running: float) -> float:
        """Seconds from the end of one answer to that of the next, where so many run. The steps' model leaves
        out the prompts that are computed meanwhile; the gaps seen lately may be of quieter times."""
        gap_s = max(self.step_s + num_running * self.step_seq_s, self.gap_s)
        return self.answer_tokens * gap_s / num_running


TYPICAL: Final = Speed(seq_s=1 / 8_000_000, step_seq_s=0.0002, harm_s=1 / 8000)
"""Before anything was seen: a model of some ten billion parameters on one card of a data centre, where a
hundred answers double the time of a step, and a thousand that of a prompt token. The first observations move
it, and what matters is how workers compare."""
