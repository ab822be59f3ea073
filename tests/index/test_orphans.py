"""Orphan runs, stored behind an unknown parent: kept, found, shortened by removals, and dropped."""

from dataclasses import replace

from gateway.core.blocks import prompt_extra_keys, tokens_of
from gateway.index.orphans import Orphans, positions
from tests.index.contract import ROOT, prompt, stored


def test_orphan_run_is_found_by_its_parent_and_its_engine_hashes() -> None:
    orphans = Orphans()
    orphans.keep(stored(range(8), [1, 2], 9), 5.0)
    (run,) = orphans
    assert (orphans.with_name(2), orphans.behind(9)) == (run, (run,))
    assert (orphans.with_name(9), orphans.behind(1)) == (None, ())
    assert (run.times, run in orphans, repr(orphans)) == ([5.0], True, "Orphans(1 runs, 2 blocks)")
    assert orphans.beginning(tokens_of(range(4))) == (run,)
    orphans.drop(run)
    orphans.drop(run)
    assert orphans.beginning(tokens_of(range(4))) == ()
    assert (len(orphans), orphans.num_blocks, orphans.behind(9), orphans.with_name(1)) == (0, 0, (), None)


def test_oldest_orphan_runs_are_dropped_beyond_the_limit_of_blocks() -> None:
    orphans = Orphans(max_blocks=4)
    for name in (10, 20, 30):
        orphans.keep(stored(range(8), [name, name + 1], 9), 0.0)
    assert [run.names for run in orphans] == [[20, 21], [30, 31]]
    orphans.keep(stored(range(20), [1, 2, 3, 4, 5], 9), 0.0)  # alone over the limit
    assert orphans.num_blocks == 4


def test_removed_block_returns_when_it_is_stored_again() -> None:
    orphans = Orphans()
    orphans.keep(stored(range(8), [1, 2], 9), 0.0)
    (run,) = orphans
    orphans.remove([2, 9, 77])
    assert (run.gone, run.is_parent_gone) == ({2}, True)
    orphans.keep(stored(range(8), [1, 2], 9), 1.0)
    assert ([*orphans], run.gone, run.is_parent_gone) == ([run], set(), False)
    assert (run.was_stored(0.5, 2.0), run.was_stored(0.0, 0.5), run.was_stored(0.2, 0.9)) == (
        True,
        True,
        False,
    )
    orphans.remove([1, 2])
    assert (len(orphans), run.gone) == (1, {1, 2})


def test_longer_run_replaces_a_run_with_the_same_beginning() -> None:
    orphans = Orphans()
    orphans.keep(stored(range(8), [1, 2], 9), 0.0)
    orphans.keep(stored(range(12), [1, 2, 3], 9), 1.0)
    (run,) = orphans
    assert (run.names, orphans.num_blocks) == ([1, 2, 3], 3)
    orphans.keep(stored(range(4), [7]), 0.0)  # a run from the root has no unknown parent
    assert len(orphans) == 1
    orphans.clear()
    assert (len(orphans), orphans.num_blocks, orphans.with_name(1)) == (0, 0, None)


def test_block_stored_again_alone_is_an_orphan_run_of_its_own() -> None:
    """Engines compute the last block of a prompt each time."""
    orphans = Orphans()
    orphans.keep(stored(range(8), [1, 2], 9), 0.0)
    orphans.remove([2])
    orphans.keep(stored(range(4, 8), [2], 1), 1.0)
    run, second = orphans
    assert (run.gone, second.gone, orphans.beginning(tokens_of(range(4, 8)))) == (set(), set(), (second,))
    orphans.remove([2])
    assert (run.gone, second.gone) == ({2}, {2})
    orphans.drop(second)
    assert (orphans.with_name(2), orphans.num_blocks) == (run, 2)


def test_orphan_run_continues_a_prompt_with_equal_block_hashes() -> None:
    orphans = Orphans()
    orphans.keep(stored(range(8, 24), [3, 4, 5, 6], 2), 0.0)
    (run,) = orphans
    chain = prompt(range(20))  # the last block is the answer's
    assert run.continues(chain, 2, chain[1])
    assert run.hashes(chain[1])[:3] == chain[2:]
    assert not run.continues(chain, 3, chain[2])
    assert not run.continues(chain, 5, chain[4])
    assert not run.continues(prompt([*range(12), 99, *range(13, 20)]), 2, chain[1])
    assert not run.continues(prompt(range(20), "lora"), 2, prompt(range(20), "lora")[1])
    salted = prompt(range(20), salt="s")  # only the first block has the salt; blocks behind it look the same
    assert run.continues(salted, 2, salted[1])


def test_orphan_run_of_an_adapter_continues_its_prompts_only() -> None:
    orphans = Orphans()
    extra = prompt_extra_keys("lora", None, 2)
    orphans.keep(stored(range(4, 12), [2, 3], 1, extra_keys=extra), 0.0)
    (run,) = orphans
    chain = prompt(range(12), "lora")
    assert run.continues(chain, 1, chain[0])
    assert not run.continues(prompt(range(12)), 1, prompt(range(12))[0])
    assert run.hashes(ROOT) != prompt(range(4, 12))


def test_block_is_found_at_block_borders_and_not_as_the_first() -> None:
    tokens = tokens_of([1, 2, 1, 2, 9, 1, 2, 1, 2])
    assert list(positions(tokens_of([1, 2]), tokens)) == [1]
    assert list(positions(tokens_of([2, 1]), tokens)) == [3]


def test_orphan_runs_with_long_extra_keys_are_not_kept() -> None:
    orphans = Orphans()
    orphans.keep(replace(stored(range(8), [1, 2], 9), extra_keys=[["x" * 3_000], None]), 0.0)
    assert len(orphans) == 0
    orphans.keep(replace(stored(range(8), [1, 2], 9), extra_keys=[["adapter", "salt"], None]), 0.0)
    assert len(orphans) == 1
