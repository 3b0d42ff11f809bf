"""The order in which a step serves sequences: by hints, age and places."""

from __future__ import annotations

from typing import Any

from weftline_engine.api import Hints, Kind, Op
from weftline_engine.bookkeeping.op_table import Backend
from weftline_engine.bookkeeping.schedule.sequence import Sequence
from weftline_engine.bookkeeping.schedule.step_scheduler import Scheduler, SchedulerConfig, StepPlan


def make_scheduler(
    blocks: int = 64,
    step_tokens: int = 40,
    max_running: int = 8,
    ahead_beside: bool = True,
    beside_tokens: int = 40,
) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            blocks=blocks,
            block_size=4,
            step_tokens=step_tokens,
            max_running=max_running,
            ahead_beside=ahead_beside,
            beside_tokens=beside_tokens,
        ),
        Backend(),
    )


def add(
    scheduler: Scheduler, name: str, tokens: int, *, open: bool = False, **hints: Any
) -> Sequence:
    """Add a generate whose prompt is one token, its own, `tokens` times. The turn of a throughput
    call is half a minute later than others, as the server says it.
    """
    if hints.get("criterion") == "throughput":
        hints.setdefault("turn", 30.0)
    op = Op(id=name, kind=Kind.GENERATE, context=name, hints=Hints(**hints))
    arrival = len(scheduler.waiting) + len(scheduler.running)
    mark = int.from_bytes(name.encode(), "big")
    one = Sequence(op, arrival, tokens=[mark] * tokens, prompt=tokens, open=open)
    scheduler.add(one)
    return one


def run(scheduler: Scheduler) -> StepPlan:
    """Plan and apply a step in which every sampled token is 9."""
    plan = scheduler.plan()
    scheduler.apply(plan)
    for chunk in plan.chunks:
        if chunk.samples:
            chunk.sequence.filled = True
            chunk.sequence.tokens.append(9)
    return plan


def names(plan: StepPlan) -> list[str]:
    return [chunk.sequence.op.id for chunk in plan.chunks]


def test_the_earliest_turn_goes_first() -> None:
    """The application with the earliest turn goes first, then the deeper call, then arrival. Open
    prompts go last, whatever their hints.
    """
    scheduler = make_scheduler()
    add(scheduler, "open", 17, open=True, application="a", turn=1.0)
    add(scheduler, "bulk", 3, application="b", turn=4080.0, criterion="throughput")
    add(scheduler, "long", 3, application="c", turn=4000.0)
    add(scheduler, "sink", 3, application="d", turn=900.0)
    add(scheduler, "deep", 3, application="d", turn=900.0, depth=2)
    add(scheduler, "late", 3, application="e", turn=900.0)
    assert names(run(scheduler)) == ["deep", "sink", "late", "long", "bulk", "open"]


def test_an_application_moves_as_one() -> None:
    """Its newest hints have an earlier turn, so its older calls move forward too."""
    scheduler = make_scheduler()
    add(scheduler, "a1", 3, application="a", turn=3.0)
    add(scheduler, "b1", 3, application="b", turn=2.0)
    add(scheduler, "a2", 3, application="a", turn=1.0)
    assert names(run(scheduler)) == ["a1", "a2", "b1"]


def test_new_hints_take_effect_in_the_next_step() -> None:
    """A prompt is half computed when the other application gets an earlier turn: that one goes
    first."""
    scheduler = make_scheduler(step_tokens=10, max_running=2)
    add(scheduler, "first", 30, application="a", turn=5.0)
    second = add(scheduler, "next", 30, application="b", turn=5.0)
    assert names(run(scheduler)) == ["first"]
    second.hints = Hints(application="b", turn=4.0)
    assert names(run(scheduler)) == ["next"]


def test_a_group_shares_the_step_with_calls_of_users() -> None:
    """A user's call leaves no room beside it. One member of a group joins all the same, and a
    second one only if both have at most GROUP_WEIGHT times as many tokens as the user's call. A
    throughput call joins like them when it has waited for a minute.
    """
    for tokens, joined in ((16, ["m1", "m2"]), (30, ["m1"])):
        scheduler = make_scheduler(blocks=256, step_tokens=200, beside_tokens=200)
        add(scheduler, "user", 8, token_bound=0)
        for name in ("m1", "m2"):
            add(scheduler, name, tokens, group="g", work_left=9999)
        assert names(scheduler.plan()) == ["user", *joined]
    for waited, joined in ((60.0, []), (61.0, ["bulk"])):
        scheduler = make_scheduler()
        add(scheduler, "bulk", 3, criterion="throughput", work_left=9999, waited=waited)
        add(scheduler, "user", 8, token_bound=0, waited=99.0)
        assert names(scheduler.plan(99.0)) == ["user", *joined]


def test_the_strictest_bound_limits_the_tokens_in_flight() -> None:
    """Two throughput sequences decode with 20 tokens each. A latency call whose step bound is 25
    leaves one of them in the step. The next call, with a bound of 10, leaves none. When these end,
    both go on.
    """
    scheduler = make_scheduler()
    for name in ("b1", "b2"):
        add(scheduler, name, 20, criterion="throughput")
    run(scheduler)
    assert names(run(scheduler)) == ["b1", "b2"]
    first = add(scheduler, "l1", 4, token_bound=25)
    assert names(run(scheduler)) == ["l1", "b1"]
    second = add(scheduler, "l2", 4, token_bound=10)
    assert names(run(scheduler)) == ["l1", "l2"]
    scheduler.drop(first)
    scheduler.drop(second)
    assert names(run(scheduler)) == ["b1", "b2"]


def test_a_bound_below_one_prompt_still_lets_the_first_run() -> None:
    """The bound holds back what runs beside an op, so nothing starves under a bound of 0."""
    scheduler = make_scheduler()
    add(scheduler, "a", 30, token_bound=0)
    add(scheduler, "b", 3)
    assert names(run(scheduler)) == ["a"]


def test_calls_with_a_bound_do_not_block_each_other() -> None:
    """The server has placed both and knows what they share. Only the other sequences wait."""
    scheduler = make_scheduler()
    add(scheduler, "a", 30, token_bound=0)
    add(scheduler, "b", 30, token_bound=0)
    add(scheduler, "c", 3)
    assert names(run(scheduler)) == ["a", "b"]


def sizes(plan: StepPlan) -> dict[str, int]:
    return {chunk.sequence.op.id: chunk.stop - chunk.start for chunk in plan.chunks}


def test_a_long_application_gets_short_steps_beside_one_that_decodes() -> None:
    """A step has 40 tokens, of which six may be prompt rows beside another application's decode.
    The application's own second call gets all that it needs. So does an application whose whole
    work fits into a step.
    """
    scheduler = make_scheduler(beside_tokens=6)
    first = add(scheduler, "a1", 3, application="a", work_left=50)
    assert sizes(run(scheduler)) == {"a1": 3}
    long = add(scheduler, "b", 30, application="b", work_left=100)
    add(scheduler, "c", 30, application="c", work_left=200)
    assert sizes(run(scheduler)) == {"a1": 1, "b": 6}
    second = add(scheduler, "a2", 9, application="a", work_left=50)
    assert sizes(run(scheduler)) == {"a1": 1, "a2": 9}
    add(scheduler, "s", 4, application="s", work_left=20, turn=1.0)
    assert sizes(run(scheduler)) == {"a1": 1, "a2": 1, "b": 6, "s": 4}
    for one in (first, second, long):
        scheduler.drop(one)
    assert sizes(run(scheduler)) == {"c": 30, "s": 1}


def test_open_prompts_wait_until_nothing_else_is_computed() -> None:
    """This applies where a row beside others costs as much as alone."""
    scheduler = make_scheduler(ahead_beside=False)
    add(scheduler, "a", 5, open=True)
    add(scheduler, "b", 6, open=True)
    call = add(scheduler, "call", 3)
    assert [names(run(scheduler)) for _ in range(2)] == [["call"], ["call"]]
    scheduler.finish(call, None)
    assert names(run(scheduler)) == ["a", "b"]
    assert scheduler.rests(run(scheduler))


def test_open_prompts_that_wait_take_no_place() -> None:
    """Of two places, six open prompts without work left take none."""
    scheduler = make_scheduler(max_running=2)
    for name in "abcdef":
        add(scheduler, name, 5, open=True)
    steps = [names(run(scheduler)) for _ in range(3)]
    assert steps == [["a", "b"], ["c", "d"], ["e", "f"]]
    add(scheduler, "x", 3)
    add(scheduler, "y", 3)
    assert names(run(scheduler)) == ["x", "y"]
    assert names(run(scheduler)) == ["x", "y"]
    assert len(scheduler.running) == 8


def test_latency_takes_a_place_and_room_from_throughput() -> None:
    """The engine has one place, and 6 of 8 blocks are taken. The short latency call gets both
    first.
    """
    scheduler = make_scheduler(blocks=8, max_running=1)
    bulk = add(scheduler, "bulk", 22, criterion="throughput")
    assert names(run(scheduler)) == ["bulk"]
    urgent = add(scheduler, "now", 10)
    assert names(run(scheduler)) == ["now"]
    assert scheduler.waiting == [bulk]
    scheduler.drop(urgent)
    assert names(run(scheduler)) == ["bulk"]


def test_latency_does_not_take_room_from_latency() -> None:
    """Work that has begun is not discarded for a call whose turn is a little earlier."""
    scheduler = make_scheduler(blocks=8)
    add(scheduler, "begun", 22, turn=1.0)
    run(scheduler)
    add(scheduler, "less", 10, turn=0.5)
    assert names(run(scheduler)) == ["begun"]


def test_a_prompt_that_just_got_its_tokens_is_not_preempted_in_the_same_step() -> None:
    """An open prompt is computed and has no work left. Another prompt without room must not take
    the blocks that this very step writes to.
    """
    scheduler = make_scheduler(blocks=6)
    first = add(scheduler, "a", 16, open=True)
    second = add(scheduler, "b", 16, open=True)
    assert names(run(scheduler)) == ["a"]
    assert (scheduler.running, scheduler.waiting) == ([first], [second])
    assert scheduler.rests(scheduler.plan())
