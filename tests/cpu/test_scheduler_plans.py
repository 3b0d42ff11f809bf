"""What a step computes, as data: chunks, budgets, sharing, copies, preemption."""

from __future__ import annotations

import pytest

from weftline_engine.api import Kind, Op, Residency
from weftline_engine.bookkeeping.op_table import Backend
from weftline_engine.bookkeeping.schedule.sequence import Sequence
from weftline_engine.bookkeeping.schedule.step_scheduler import Scheduler, SchedulerConfig, StepPlan


def make_scheduler(blocks: int = 32, step_tokens: int = 40, max_running: int = 8) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            blocks=blocks, block_size=4, step_tokens=step_tokens, max_running=max_running
        ),
        Backend(),
    )


def add(
    scheduler: Scheduler, name: str, tokens: list[int], kind: Kind = Kind.GENERATE, salt: str = ""
) -> Sequence:
    op = Op(id=name, kind=kind, context=name, salt=salt)
    sequence = Sequence(op, len(scheduler.waiting), tokens=tokens, prompt=len(tokens))
    scheduler.add(sequence)
    return sequence


def ranges(plan: StepPlan) -> list[tuple[str, int, int, bool]]:
    return [(c.sequence.op.id, c.start, c.stop, c.samples) for c in plan.chunks]


def run(scheduler: Scheduler) -> StepPlan:
    """Plan and apply a step in which every sampled token is 9."""
    plan = scheduler.plan()
    scheduler.apply(plan)
    for chunk in plan.chunks:
        if chunk.samples:
            chunk.sequence.filled = True
            chunk.sequence.tokens.append(9)
    return plan


def test_a_long_prompt_is_computed_in_chunks_beside_decoding() -> None:
    """The decoding sequence gets its one token first, the prompt the rest of the budget."""
    scheduler = make_scheduler(step_tokens=10)
    add(scheduler, "short", [1, 2, 3])
    assert ranges(run(scheduler)) == [("short", 0, 3, True)]
    add(scheduler, "long", list(range(10, 33)))
    assert ranges(run(scheduler)) == [("short", 3, 4, True), ("long", 0, 9, False)]
    assert ranges(run(scheduler)) == [("short", 4, 5, True), ("long", 9, 18, False)]
    assert ranges(run(scheduler)) == [("short", 5, 6, True), ("long", 18, 23, True)]
    assert ranges(run(scheduler)) == [("short", 6, 7, True), ("long", 23, 24, True)]


def test_several_prompts_share_a_step() -> None:
    """Ten tokens hold two prompts and the beginning of a third."""
    scheduler = make_scheduler(step_tokens=10)
    add(scheduler, "a", [1, 2, 3])
    add(scheduler, "b", [2, 3, 4, 5])
    add(scheduler, "c", [3, 4, 5, 6, 7])
    assert ranges(scheduler.plan()) == [("a", 0, 3, True), ("b", 0, 4, True), ("c", 0, 3, False)]


def test_prompts_that_grow_by_the_same_text_are_computed_once() -> None:
    """Two open prompts get the same tokens in parts of 5, like two reviews of a file that is being
    written. Blocks have 4 tokens. A partial block waits, so both stop at a block's end.
    """
    scheduler = make_scheduler()
    text = list(range(1, 21))
    both = [add(scheduler, name, []) for name in "ab"]
    for one in both:
        one.open = True
    found = []
    for begin in range(0, 20, 5):
        for one in both:
            one.tokens += text[begin : begin + 5]
        found.append(ranges(run(scheduler)))
    assert found == [
        [("a", 0, 4, False)],
        [("a", 4, 8, False)],
        [("a", 8, 12, False)],
        [("a", 12, 16, False)],
    ]
    for one, last in zip(both, (30, 31), strict=True):
        one.tokens.append(last)
        one.prompt, one.open = len(one.tokens), False
    assert ranges(run(scheduler)) == [("a", 16, 21, True), ("b", 20, 21, True)]


def test_prompts_that_go_on_from_the_same_copy_are_computed_once() -> None:
    """Both continue a context that ends inside a block, which each copies. Then they get the same
    text. The second adopts the blocks of the first and returns its copy.
    """
    scheduler = make_scheduler()
    first = add(scheduler, "first", list(range(1, 7)), kind=Kind.FILL)
    run(scheduler)
    scheduler.finish(first, scheduler.contexts.add(first.op))
    both = [add(scheduler, name, list(range(1, 7))) for name in "ab"]
    for one in both:
        one.open = True
    plan = run(scheduler)
    assert (ranges(plan), len(plan.copies)) == ([], 2)
    free = scheduler.pool.free
    for one, last in zip(both, (30, 31), strict=True):
        one.tokens += [*range(7, 18), last]
        one.prompt, one.open = len(one.tokens), False
    assert ranges(run(scheduler)) == [("a", 5, 18, True), ("b", 16, 18, True)]
    assert both[1].cached == 16
    assert scheduler.pool.free == free - 3  # three of a; b has one more, and returned its copy


def test_equal_prefixes_meet_within_one_step() -> None:
    """Of two equal prompts of 10 tokens, the second computes only its last partial block."""
    scheduler = make_scheduler()
    add(scheduler, "a", list(range(1, 11)))
    second = add(scheduler, "b", list(range(1, 11)))
    plan = scheduler.plan()
    assert ranges(plan) == [("a", 0, 10, True), ("b", 8, 10, True)]
    assert plan.chunks[0].blocks[:2] == plan.chunks[1].blocks[:2]
    assert plan.chunks[0].blocks[2] != plan.chunks[1].blocks[2]
    assert second.cached == 8


def test_a_second_prompt_follows_the_first_through_its_chunks() -> None:
    """Both arrive together and are longer than a step, and nothing is computed twice."""
    scheduler = make_scheduler(step_tokens=9)
    add(scheduler, "a", list(range(1, 21)))
    second = add(scheduler, "b", list(range(1, 21)))
    assert ranges(run(scheduler)) == [("a", 0, 9, False)]
    assert ranges(run(scheduler)) == [("a", 9, 18, False)]
    assert ranges(run(scheduler)) == [("a", 18, 20, True), ("b", 16, 20, True)]
    assert second.cached == 16


def test_a_fork_inside_a_block_copies_it() -> None:
    """A context of 6 tokens ends in the middle of its second block. A sequence that continues it
    copies that block.
    """
    scheduler = make_scheduler()
    parent = add(scheduler, "parent", [1, 2, 3, 4, 5, 6], Kind.FILL)
    blocks = run(scheduler).chunks[0].blocks
    scheduler.finish(parent, scheduler.contexts.add(parent.op))
    for name, tail in (("left", [7]), ("right", [8])):
        child = add(scheduler, name, [1, 2, 3, 4, 5, 6, *tail])
        plan = scheduler.plan()
        chunk = plan.chunks[-1]
        assert (chunk.start, chunk.stop, child.cached) == (6, 7, 6)
        assert chunk.blocks[0] == blocks[0]
        assert plan.copies == ((blocks[1], chunk.blocks[1]),)


def test_the_last_prompt_token_of_a_generate_is_computed_again() -> None:
    """All of its prompt is in the cache, but the logits after the last token are not."""
    scheduler = make_scheduler()
    first = add(scheduler, "first", [1, 2, 3, 4, 5, 6, 7, 8])
    run(scheduler)
    scheduler.finish(first, None)
    again = add(scheduler, "again", [1, 2, 3, 4, 5, 6, 7, 8])
    assert ranges(scheduler.plan()) == [("again", 7, 8, True)]
    assert again.cached == 7


def test_a_fill_of_known_tokens_takes_no_step() -> None:
    """A fill needs no logits, so it ends with the plan."""
    scheduler = make_scheduler()
    scheduler.finish(add_and_run(scheduler, "first"), None)
    again = add(scheduler, "again", [1, 2, 3, 4, 5, 6], Kind.FILL)
    plan = scheduler.plan()
    assert (plan.chunks, plan.done, again.cached) == ((), (again,), 6)


def add_and_run(scheduler: Scheduler, name: str) -> Sequence:
    sequence = add(scheduler, name, [1, 2, 3, 4, 5, 6], Kind.FILL)
    run(scheduler)
    return sequence


def test_salts_keep_tenants_apart() -> None:
    """Two tenants with one prompt compute it twice."""
    scheduler = make_scheduler()
    add(scheduler, "a", list(range(1, 11)), salt="one")
    add(scheduler, "b", list(range(1, 11)), salt="two")
    assert ranges(scheduler.plan()) == [("a", 0, 10, True), ("b", 0, 10, True)]


def test_the_last_to_come_is_preempted_and_recomputes() -> None:
    """Two sequences of 8 tokens fill 4 blocks. The ninth token of the first preempts the second."""
    scheduler = make_scheduler(blocks=5)
    add(scheduler, "a", [1, 2, 3, 4, 5, 6, 7])
    second = add(scheduler, "b", [2, 3, 4, 5, 6, 7, 8])
    assert ranges(run(scheduler)) == [("a", 0, 7, True), ("b", 0, 7, True)]
    assert ranges(run(scheduler)) == [("a", 7, 8, True), ("b", 7, 8, True)]
    assert ranges(run(scheduler)) == [("a", 8, 9, True)]
    assert (scheduler.waiting, second.tokens[-2:]) == ([second], [9, 9])
    scheduler.drop(scheduler.running[0])
    # Its first block was still in the tree; its second had been evicted for "a".
    assert ranges(run(scheduler)) == [("b", 8, 9, True)]


def test_a_pinned_context_is_evicted_only_when_nothing_else_can_run() -> None:
    """The pool of 4 blocks is all pinned. The next request gets it, and the drop is reported."""
    scheduler = make_scheduler(blocks=4)
    first = add(scheduler, "first", list(range(1, 17)), Kind.FILL)
    run(scheduler)
    context = scheduler.contexts.add(first.op)
    scheduler.finish(first, context)
    add(scheduler, "second", list(range(20, 30)))
    assert scheduler.contexts.reports() == [context]
    assert context.state == (Residency.RESIDENT, 16)
    assert ranges(scheduler.plan()) == [("second", 0, 10, True)]
    assert (context.held, context.tokens) == ([], tuple(range(1, 17)))
    assert scheduler.contexts.reports() == [context]
    assert context.state == (Residency.RESIDENT, 4)


def test_the_least_recently_used_leaf_is_evicted_first() -> None:
    """The cache has two contexts of two blocks. A third one takes the end of the older."""
    scheduler = make_scheduler(blocks=4)
    for name, token in (("old", 1), ("new", 2)):
        sequence = add(scheduler, name, [token] * 8, Kind.FILL)
        run(scheduler)
        scheduler.finish(sequence, None)
    assert [node.tokens[0] for node in scheduler.tree.nodes()].count(1) == 2
    sequence = add(scheduler, "next", [3] * 4, Kind.FILL)
    run(scheduler)
    left = sorted(node.tokens[0] for node in scheduler.tree.nodes())
    assert left == [1, 2, 2, 3]


@pytest.mark.parametrize(("blocks", "step_tokens"), [(0, 40), (4, 8)])
def test_impossible_bounds_are_refused(blocks: int, step_tokens: int) -> None:
    """A cache smaller than a block, or a step that has no room for all sequences."""
    with pytest.raises(ValueError, match=r"smaller than one block|must exceed max_running"):
        make_scheduler(blocks=blocks, step_tokens=step_tokens)
