"""How much room applications need at once, and when one gives its place up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.null.test_memory import World, app, make_op, make_usage, names
from weftline_engine.api import KvCosts, Retention
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.admission import ModelPool, admit, peak
from weftline_server.schedule.memory.applications import Application
from weftline_server.schedule.memory.constants import OTHERS
from weftline_server.schedule.memory.habits import Growths, Habits
from weftline_server.schedule.memory.keeper import Want
from weftline_server.schedule.memory.paused_contexts import LONG_S
from weftline_server.schedule.memory.pool_use import Filling
from weftline_server.schedule.memory.verbs import AdviseContext, RetainContext


def test_what_is_not_written_yet_counts_when_it_is() -> None:
    """Two calls of 500 tokens, half of which they write. When one is at its end the other has 250:
    they hold 750 at most. Of an application with two calls at once nothing is known."""
    inside = [app("a", 1.0, 500, 500), app("b", 2.0, 500, 500)]
    inside[0].newest.left, inside[1].newest.left = 1, 250
    assert peak(inside) == 499 + 250 + 2
    inside[0].newest.left = 250
    assert peak(inside) == 1000
    one = Application("c", "m", True, 0.0, 0.0, Habits())
    one.queued(500, 0.0, 250)
    assert one.newest.left == 250
    one.queued(400, 0.0, 100)
    assert one.newest.left == 0
    world = World()
    for name in "de":
        world.memory.queued(make_op(name, name, 250, 250), "m", True, 0.0)
        world.memory._applications.enter(name, "m", "", True, 0.0, 500).habits.released = 1.0
        world.memory.gate.admit("m", 750, 0.0)
    for left, enters in ((3, False), (2, True)):
        world.memory.gate.progress([{"d": left, "stranger": 9}])
        world.memory.gate.admit("m", 752, 1.0)
        assert world.memory.gate.is_admitted("e") is enters, "d ends with 500, when e has 252"


@pytest.mark.parametrize(("pause_s", "stays"), [(0.45, True), (0.55, False)])
def test_giving_up_is_worth_half_of_computing_again(pause_s: float, stays: bool) -> None:
    """What gives its place up keeps its context until the room is needed. To compute 510 tokens
    again wastes as much as a pause of one second, so it gives its place up for half a second.
    """
    world = World()
    world.memory.has_pool("e", 1000, costs=KvCosts(step_s=0.01, fill_s=1 / 510, chunk=510))
    op = make_op("a", "p", 500)
    world.memory.queued(op, "m", True, 0.0)
    world.memory.gate.admit("m", 1000, 0.0)
    one = world.memory._applications.find("a")
    assert one is not None
    one.pause_s = pause_s
    world.memory.paused("e", PrimitiveId("a", "p"), op, make_usage(500), 1.0)
    assert world.memory.gate.is_admitted("a") is stays


def test_a_context_that_takes_long_to_compute_keeps_its_room_so_long() -> None:
    """The engine would compute its 900 tokens again for 90 s. So others do not get its room for ten
    times as long, however short the usual pauses of its kind are.
    """
    one = app("a", 0.0, 900, 900)
    one.habits.learn_pause(0.5)
    one.queued(900, 0.0)
    one.ended(10.0)
    assert not one.is_dormant(909.9, 0.1)
    assert one.is_dormant(910.1, 0.1)


@pytest.mark.parametrize(
    ("pause_s", "fill_s", "away_s"),
    [
        (None, 0.0, 1.0),  # perhaps its only call: a second
        (None, 0.01, 9.0),  # or as long as its 900 tokens take
        (2.0, 0.0, 4.0),  # two of the usual pauses
        (0.1, 0.0, 1.0),
    ],
)
def test_nobody_says_that_a_guessed_session_has_ended(
    pause_s: float | None, fill_s: float, away_s: float
) -> None:
    """Its room stays empty until it is dormant, so that is soon."""
    one = app("a", 0.0, 900)
    one.newest.end_unknown = True
    if pause_s is not None:
        one.habits.learn_pause(pause_s)
    one.queued(900, 0.0)
    one.ended(10.0)
    assert not one.is_dormant(10.0 + away_s - 0.01, fill_s)
    assert one.is_dormant(10.0 + away_s + 0.01, fill_s)


def test_a_kind_learns_from_those_that_have_not_come_back_for_long() -> None:
    """Nobody tells the end of a guessed session. Others get its room after a second, and after five
    its kind learns its size. If the session goes on after all, its kind learns from the larger
    size.
    """
    world = World()

    def call(size: int, start: float) -> Application:
        op = make_op("a", f"p{size}", size)
        world.memory.queued(op, "m", True, start, guessed=True)
        world.memory.gate.admit("m", 9000, start)
        world.memory.finished("e", PrimitiveId("a", "p"), op, make_usage(size), start)
        found = world.memory._applications.find("a")
        assert found is not None
        return found

    def others_come(now: float) -> None:
        world.memory.queued(make_op(f"b{now}", "q", 10), "m", True, now)
        world.memory.gate.admit("m", 9000, now)

    one = call(300, 0.0)
    one.habits.learn_pause(0.5)
    others_come(2.0)
    assert not world.memory.gate.is_admitted("a") and one.habits.size is None
    others_come(4.9)
    assert one.habits.size is None
    others_come(5.1)
    assert one.habits.size == 310  # with its output
    call(600, 6.0)
    others_come(40.0)
    assert one.habits.size == 310 + 0.3 * 300


def test_an_answer_without_a_call_of_its_tools_gives_the_room_up() -> None:
    """A guessed session that was offered tools, and calls none, has probably ended: others get its
    room at once, its context is evicted first, and its kind learns its size. The one that called a
    tool, the one that was offered none, and the one whose end is told keep their rooms.
    """
    for tools, guessed, rests in (
        ((), True, True),
        (("look",), True, False),
        (None, True, False),
        ((), False, False),
    ):
        world = World()
        world.wants["p"] = Want()
        if tools is not None:
            world.tools["p"] = tools
        op = make_op("a", "p", 300)
        world.memory.queued(op, "m", True, 0.0, guessed=guessed)
        world.memory.gate.admit("m", 1000, 0.0)
        said = world.memory.finished("e", PrimitiveId("a", "p"), op, make_usage(300), 1.0)
        assert (AdviseContext("e", "p", LONG_S, None) in said) is rests
        world.memory.queued(make_op("b", "q", 10), "m", True, 1.0)
        world.memory.gate.admit("m", 1000, 1.0)
        assert world.memory.gate.is_admitted("a") is not rests
        one = world.memory._applications.find("a")
        assert one is not None and one.habits.size == (310 if rests else None)


def test_an_unknown_kind_grows_like_the_others_of_its_tenant() -> None:
    """At first it is expected to grow by twice its first call, or the usual first call if that is
    less. Each application that has ended corrects this by the weight of its first call, so small
    ones hardly teach that a large one stays small.
    """
    others = Growths()
    assert others.expect(600) == 1200
    others.begin(100)
    others.begin(500)
    assert others.expect(600) == 600
    assert others.expect(100) == 200
    others.end(600, 0)
    assert others.expect(600) == 300
    for _ in range(OTHERS):
        others.end(10, 100)
    assert others.expect(1600) == (1600 * 600 + 160 * 100) / 1760


def test_one_that_has_outgrown_its_kind_grows_by_as_much_again() -> None:
    """Unless calls of its kind stop for tools."""
    one = app("a", 0.0, 1200, 1000.0)
    assert one.growth == 200.0
    one.habits.learn_release(False)
    assert one.growth == 0.0


def test_who_comes_back_before_others_took_its_room_does_not_wait() -> None:
    """An application was away for longer than it keeps its room, but nobody else waited for room.
    It goes on at once.
    """
    world = World()
    world.wants["x"] = Want()
    world.call("a", "x", 900, 0.0)
    world.memory.gate.use("m").busy.note(1.0, 20.0)
    world.memory.queued(make_op("a", "y", 950), "m", True, 400.0)
    assert world.memory.gate.may_start("a")


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(0, 3000))
def test_the_youngest_leave_once_staying_has_cost_the_excess(sizes: list[int], again: int) -> None:
    """Where all stay, the excess is computed again in each turn. So they stay until it was computed
    once. Then the youngest leave, no more of them than needed, and never the oldest.
    """
    inside = [app(str(i), float(i), size, size) for i, size in enumerate(sizes)]
    found = admit([], inside, ModelPool(tokens=1000, again=again), 10.0)
    excess = sum(sizes) - 1000
    stay = len(sizes) - len(found.out)
    assert names(found.out) == [str(i) for i in range(len(sizes) - 1, stay - 1, -1)]
    assert found.crowded == (excess > 0 and not found.out)
    if not 0 < excess < again:
        assert not found.out
    else:
        assert stay == 1 or sum(sizes[:stay]) <= 1000
        assert stay == len(sizes) or sum(sizes[: stay + 1]) > 1000


def test_only_what_is_computed_again_in_a_crowd_counts() -> None:
    """600 tokens are computed again while all fits. Then a and b hold 1,090 of 1,000. The second
    leaves when more than 90 tokens more were computed again.
    """
    world = World()
    gate = world.memory.gate
    world.call("a", "a1", 100, 0.0)
    world.call("b", "b1", 100, 1.0)
    gate.computed("m", make_usage(600), known=600, horizon=1000)
    assert not gate.admit("m", 1000, 2.0).out
    world.call("a", "a2", 490, 3.0, cached=100)
    world.call("b", "b2", 580, 5.0, cached=100)
    for again, out in ((90, []), (1, ["b"])):
        gate.computed("m", make_usage(again), known=again, horizon=1000)
        assert names(gate.admit("m", 1000, 7.0).out) == out
    assert not gate.admit("m", 1000, 8.0).out


def test_what_was_lost_outside_does_not_count() -> None:
    """What an application computes again when it enters was not lost in a crowd. From its second
    call on it counts.
    """
    world = World()
    world.call("a", "a1", 100, 0.0)
    gate = world.memory.gate
    gate.arrive(app("b", 1.0, 100, 100))
    gate.admit("m", 1000, 1.0)
    for counted in (0, 80, 160):
        gate.computed("m", make_usage(80), 80, 1000, "b")
        assert gate.use("m").again == counted


def test_the_contexts_of_the_evicted_are_evicted_first() -> None:
    """Of an application that leaves, its idle context is expected after all that is inside, and so
    is that of its running call when this ends. When it is admitted again, its usual pause counts.
    """
    world = World()
    world.wants = dict.fromkeys(("b1", "b2", "b3"), Want())
    world.call("a", "a1", 100, 0.0)
    world.call("b", "b1", 100, 1.0)
    world.call("a", "a2", 690, 3.0, cached=100)
    op = make_op("b", "b2", 490)
    assert world.memory.queued(op, "m", True, 4.0) == [RetainContext("e", "b1", Retention.KEEP)]
    world.memory.gate.computed("m", make_usage(300), known=300, horizon=1000)
    world.wants["c"] = Want()
    assert world.memory.admit("m", 1000, 5.0) == [], "what is pinned stays"
    assert world.memory.gate.is_evicted("b")
    said = world.memory.finished("e", PrimitiveId("b", "b2"), op, make_usage(490, 100), 6.0)
    assert AdviseContext("e", "b2", LONG_S, None) in said
    world.memory.closed("a")
    assert AdviseContext("e", "b3", 2.0, None) in world.call("b", "b3", 600, 8.0, cached=500)


def test_the_idle_context_of_the_evicted_is_evicted_first() -> None:
    """The engine is told at once that it is read last."""
    world = World()
    world.wants = dict.fromkeys(("b1", "b2"), Want())
    world.call("a", "a1", 100, 0.0)
    world.call("b", "b1", 100, 1.0)
    world.call("a", "a2", 690, 3.0, cached=100)
    world.call("b", "b2", 490, 4.0, cached=100)
    world.memory.gate.computed("m", make_usage(300), known=300, horizon=1000)
    assert world.memory.admit("m", 1000, 6.0) == [AdviseContext("e", "b2", LONG_S, None)]


@pytest.mark.parametrize(
    ("filling", "recomputed", "changed", "enters"),
    [
        (0.4, 0.24, 0.16, ["b"]),
        (0.4, 0.24, 0.14, []),  # b's context takes 0.05 s, three times that has not passed
        (0.79, 1.0, 0.16, ["b"]),  # whatever is computed again
        (0.81, 0.0, 0.16, []),  # another application would slow the prompts of the others down
        (0.4, None, 0.16, []),  # the engine does not tell what it computes again
    ],
)
def test_where_engines_decode_applications_are_admitted_beyond_the_room(
    filling: float, recomputed: float | None, changed: float, enters: list[str]
) -> None:
    """A GPU that computes 10,000 prompt tokens a second is always busy, and its steps have room for
    more sequences. b enters though a fills the cache, and a stays though it lost its context."""
    pool = ModelPool(
        tokens=1000, recomputed=recomputed, filling=filling, fill_s=1e-4, again=901.0,
        changed=changed,
    )  # fmt: skip
    found = admit([app("b", 1.0, 500, 500)], [app("a", 0.0, 900, 900)], pool, 2.0)
    assert (names(found.enter), found.beyond, found.out) == (enters, bool(enters), ())
    crowd = [app("a", 0.0, 900, 900), app("b", 1.0, 500, 500)]
    decodes = recomputed is not None and filling < 0.8
    assert names(admit([], crowd, pool, 3.0).out) == ([] if decodes else ["b"])


@pytest.mark.parametrize(("fill_s", "enters"), [(1e-4, ["b", "c"]), (1e-3, [])])
def test_where_contexts_are_cheap_the_present_sizes_have_to_fit(
    fill_s: float, enters: list[str]
) -> None:
    """Each holds 300 of 1,000 tokens and will hold 900, which take 0.09 or 0.9 s to compute."""
    pool = ModelPool(tokens=1000, recomputed=0.5, fill_s=fill_s)
    waiting = [app(name, at, 300, 900) for name, at in (("b", 1.0), ("c", 2.0), ("d", 3.0))]
    assert names(admit(waiting, [app("a", 0.0, 300, 900)], pool, 4.0).enter) == enters


@pytest.mark.parametrize(
    ("fill_s", "changed", "leave"),
    [(1e-4, 0.16, ["c"]), (1e-4, 0.14, []), (1e-3, 0.14, ["c", "b"])],
)
def test_where_contexts_are_cheap_the_youngest_leave_one_by_one(
    fill_s: float, changed: float, leave: list[str]
) -> None:
    """Prompts take all of the time. c's context takes 0.05 or 0.5 s to compute."""
    pool = ModelPool(tokens=500, recomputed=0.5, fill_s=fill_s, again=9999.0, changed=changed)
    crowd = [app(name, at, 500, 500) for name, at in (("a", 0.0), ("b", 1.0), ("c", 2.0))]
    assert names(admit([], crowd, pool, 3.0).out) == leave


@pytest.mark.parametrize(("fill_s", "enters"), [(3.6e-4, ["b"]), (3.8e-4, [])])
def test_a_context_that_takes_long_to_compute_is_not_crowded(
    fill_s: float, enters: list[str]
) -> None:
    """a's 900 tokens take 0.32 s or 0.34 s to compute. A third of a second is no longer cheap."""
    pool = ModelPool(tokens=1000, recomputed=0.1, filling=0.4, fill_s=fill_s)
    found = admit([app("b", 1.0, 500, 500)], [app("a", 0.0, 900, 900)], pool, 2.0)
    assert names(found.enter) == enters


def test_where_calls_stop_for_tools_the_room_is_the_bound() -> None:
    """The pauses of a's kind have kept their room so far. Such pauses are known, and nobody enters
    beyond the room."""
    pool = ModelPool(tokens=1000, recomputed=0.1, filling=0.4, fill_s=1e-4)
    inside = app("a", 0.0, 900, 900)
    assert names(admit([app("b", 1.0, 500, 500)], [inside], pool, 2.0).enter) == ["b"]
    inside.habits.learn_release(False)
    assert names(admit([app("b", 1.0, 500, 500)], [inside], pool, 2.0).enter) == []


def test_prompts_fill_a_share_of_the_recent_time() -> None:
    """Before the first prompt, prompts count as all that the engines do. After 30 s that weighs
    1/e³. Then a prompt of 2 s is a fifth of the last ten, and a tenth of two engines' time."""
    filling = Filling()
    assert filling.share(5.0, 1) == 1.0
    filling.add(0.0, 5.0)
    before = math.exp(-3)
    assert filling.share(5.0, 1) == 1.0 and filling.share(35.0, 1) == before
    filling.add(2.0, 35.0)
    assert filling.share(35.0, 1) == pytest.approx(before + 0.2)
    assert filling.share(35.0, 2) == pytest.approx(before + 0.1)
    assert filling.share(45.0, 1) == pytest.approx((before + 0.2) / math.e)


def test_the_gate_knows_how_much_of_the_time_prompts_take() -> None:
    """A prompt of 500 tokens takes 1 s, a tenth of ten seconds. Without times of prompts an engine
    counts as one that only computes prompts."""
    gate = World().memory.gate
    gate.computed("m", make_usage(500), 0, 1000, "a", 3.0)
    assert gate.use("m").filling.share(99.0, 1) == 1.0 and not gate.use("m").fill_s
    gate = World().memory.gate
    timed = replace(make_usage(500), started=2.0, filled=3.0)
    gate.computed("m", timed, 0, 1000, "a", 3.0)
    assert gate.use("m").fill_s == 0.002
    assert gate.use("m").filling.share(13.0, 1) == pytest.approx(1.1 / math.e)


def test_contexts_are_exchanged_ten_times_slower_than_they_are_computed() -> None:
    """900 tokens of 0.1 s take 90 s. So the next one is admitted for its age when it has waited for
    900 s, and when the last such admission is 900 s ago.
    """
    waiting = [app("b", 1.0, 900, 900)]
    for forced, waited, enters in ((899.0, 902.0, []), (902.0, 899.0, []), (901.0, 901.0, ["b"])):
        pool = ModelPool(tokens=1000, recomputed=0.5, fill_s=0.1, forced=forced)
        found = admit(waiting, [app("a", 0.0, 900, 900)], pool, 1.0 + waited)
        assert names(found.enter) == enters


def test_an_exchange_costs_what_those_that_leave_compute_again() -> None:
    """A session of 50 tokens waits until the one with 900 tokens, which would leave for it, was
    worth computing: 10 times 0.1 s for 950 tokens.
    """
    inside, waiting = [app("a", 0.0, 80, 80), app("b", 1.0, 900, 900)], [app("c", 2.0, 50, 50)]
    pool = ModelPool(tokens=1000, recomputed=0.5, fill_s=0.1)
    early, late = (admit(waiting, inside, pool, 2.0 + waited) for waited in (949.0, 951.0))
    assert (names(early.enter), names(early.out)) == ([], [])
    assert (names(late.enter), names(late.out)) == (["c"], ["b"])


def test_what_is_cheap_to_compute_waits_less() -> None:
    """The turn of 400 tokens comes 10 times 30 s later than that of 100 tokens, where a token takes
    0.1 s. So it goes first only if it came so long before.
    """
    pool = ModelPool(tokens=500, fill_s=0.1)
    for apart, first in ((290.0, "b"), (310.0, "a")):
        waiting = [app("a", 0.0, 400, 400), app("b", apart, 100, 100)]
        found = admit(waiting, [app("x", 0.0, 80, 80)], pool, apart + 1.0)
        assert names(found.enter) == [first]


def test_room_stays_for_the_longest_pause_of_the_kind() -> None:
    """A user who once thought for 100 s has a place for as long. After 23 short pauses the long one
    counts half.
    """
    one = app("a", 0.0, 300, 900)
    one.queued(300, 0.0)
    one.ended(10.0)
    one.habits.learn_pause(100.0)
    for _ in range(23):
        one.habits.learn_pause(0.1)
    assert not one.is_dormant(10.0 + 100 * 0.97**23 - 0.1, 0.0)
    assert one.is_dormant(10.0 + 100 * 0.97**23 + 0.1, 0.0)


def test_beyond_the_room_of_engines_that_decode_the_last_context_is_computed_first() -> None:
    """Until its first token comes, a prompt is not in the share of time that prompts take."""
    world = World()
    for name in "de":
        world.memory.queued(make_op(name, name, 200, 50), "m", True, 0.0)
    gate = world.memory.gate
    use = gate.use("m")
    use.recomputed.add(make_usage(250), 0, 1000.0)
    use.fill_s = 0.01
    use.filling.add(0.0, 0.0)
    gate.admit("m", 800, 0.0)
    assert gate.is_admitted("d") and not gate.is_admitted("e")
    gate.admit("m", 800, 20.0)
    assert not gate.is_admitted("e")
    gate.progress([{"d": 40}], ["d"])
    gate.admit("m", 800, 20.0)
    assert gate.is_admitted("e")
