from array import array

from gateway.replay.context_limit import Admitted, admitted
from gateway.replay.job import ReplayJob


def test_prompts_without_room_are_refused_and_answers_end_at_the_limit() -> None:
    sizes = [(9, 1), (10, 1), (11, 1), (5, 5), (5, 6)]
    jobs = [ReplayJob(0.0, array("I", range(num)), out, output=[7] * out) for num, out in sizes]
    found = admitted(jobs, 10)
    assert [(job.num_tokens, job.num_output, len(job.output)) for job in found.jobs] == [
        (9, 1, 1),
        (5, 5, 5),
        (5, 5, 5),
    ]
    assert (found.num_rejected, found.num_truncated) == (2, 1)
    assert jobs[-1].num_output == 6, "the caller's request is as before"
    assert admitted(found.jobs, 10) == Admitted(found.jobs)
