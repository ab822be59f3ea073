"""How fast one worker works, as it is believed now; `paces.py` learns it from what requests told.

An engine that batches continuously computes prompts in pieces, between the tokens of the answers that run
there. Until the first token of a request it takes

    start_s + tokens ahead and its own · (token_s + answers that run there · seq_s)

and each prompt token that is computed meanwhile makes an answer that runs there longer by `harm_s`.
"""

import msgspec


class Pace(msgspec.Struct, frozen=True, gc=False):
    """start_s   what a request waits for besides its prompt: the network, the step that runs, its first token
    token_s   computing one prompt token where nothing else runs
    seq_s     what each answer that runs there adds to that
    step_s, step_seq_s   between two tokens of an answer that runs alone, and what each other one adds
    harm_s    what computing one prompt token delays an answer by
    """

    start_s: float = 0.02
    token_s: float = 1 / 8000
    seq_s: float = 0.0
    step_s: float = 0.02
    step_seq_s: float = 0.0
    harm_s: float = 0.0

    def ttft_s(self, num_tokens: float, num_running: int) -> float:
        """Seconds until the first token of a request, with `num_tokens` to be computed until then."""
        return self.start_s + num_tokens * (self.token_s + num_running * self.seq_s)


TYPICAL = Pace(harm_s=1 / 8000)
"""Before anything was seen: a model of some ten billion parameters on one card of a data centre. The first
observations move it, and what matters is how workers compare."""
