"""The speed of a worker, as `routing/speed_model.py` learns it from finished requests.

An engine that batches continuously computes prompts in pieces, between the tokens of the answers that run
there. Until the first token of a request it takes

    start_s + answers that run there · start_seq_s
            + tokens ahead and its own · (token_s + answers that run there · seq_s)

and each prompt token that is computed meanwhile makes an answer that runs there longer by `harm_s`.
"""

import math

import msgspec


class Speed(msgspec.Struct, frozen=True, gc=False):
    """start_s   what a request waits for besides its prompt: the network, the step that runs, its first token
    start_seq_s   what each answer that runs there adds to that: its tokens come in the same steps
    token_s   computing one prompt token where nothing else runs
    seq_s     what each answer that runs there adds to that
    step_s, step_seq_s   between two tokens of an answer that runs alone, and what each other one adds
    harm_s    what computing one prompt token delays an answer by
    answer_tokens   of its answers lately
    max_running   answers that it runs at once; infinite where that is not known
    """

    start_s: float = 0.02
    token_s: float = 1 / 8000
    seq_s: float = 0.0
    step_s: float = 0.02
    step_seq_s: float = 0.0
    harm_s: float = 0.0
    start_seq_s: float = 0.0
    answer_tokens: float = 200.0
    max_running: float = math.inf

    def ttft_s(self, num_tokens: float, num_running: int) -> float:
        """Seconds until the first token of a request, with `num_tokens` to be computed until then."""
        start_s = self.start_s + num_running * self.start_seq_s
        return start_s + num_tokens * (self.token_s + num_running * self.seq_s)

    def wait_s(self, num_in_flight: int) -> float:
        """Seconds until enough answers have ended for a request that comes now."""
        num_behind = num_in_flight + 1 - self.max_running
        return num_behind * self.interval_s(self.max_running) if num_behind > 0 else 0.0

    def interval_s(self, num_running: float) -> float:
        """From the end of one answer to that of the next, where so many run."""
        return self.answer_tokens * (self.step_s / num_running + self.step_seq_s)


TYPICAL = Speed(harm_s=1 / 8000)
"""Before anything was seen: a model of some ten billion parameters on one card of a data centre. The first
observations move it, and what matters is how workers compare."""
