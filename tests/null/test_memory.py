"""Which contexts stay in the KV cache, and which applications are admitted, as tables: no engine,
no clock.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline_engine.api import Hints, Kind, KvCosts, Op, Retention, SamplingParams, Usage
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.admission import ModelPool, admit, peak
from weftline_server.schedule.memory.applications import Application, Applications
from weftline_server.schedule.memory.constants import FILLED, GROWTH, MOST_KINDS, PATIENCE_S
from weftline_server.schedule.memory.habits import Habits
from weftline_server.schedule.memory.keeper import Memory, Want
from weftline_server.schedule.memory.pauses import UNKNOWN_PAUSE_S
from weftline_server.schedule.memory.verbs import AdviseContext, FreeContext, RetainContext, Verb


def make_op(application: str, name: str, tokens: int, output: int = 10) -> Op:
    return Op(
        id=name,
        kind=Kind.GENERATE,
        context=name,
        tokens=tuple(range(tokens)),
        sampling=SamplingParams(max_tokens=output),
        hints=Hints(application=application),
    )


def make_usage(prompt: int, cached: int = 0, output: int = 10) -> Usage:
    return Usage(
        prompt_tokens=prompt, cached_tokens=cached, output_tokens=output, started=0.0, filled=0.0
    )


class World:
    """A memory over one engine of 1,000 tokens. `wants` says what each context is wanted for."""

    def __init__(self, *without: str) -> None:
        self.wants: dict[str, Want | None] = {}
        self.tools: dict[str, tuple[str, ...]] = {}
        self.moves_on = False  # by itself, after the call that ends next
        self.memory = Memory(self, frozenset(without))
        self.memory.has_pool("e", 1000)

    def want(self, id: PrimitiveId) -> Want | None:
        return self.wants.get(id.primitive)

    def goes_on(self, application: str) -> bool:
        return self.moves_on

    def called_tools(self, id: PrimitiveId) -> tuple[str, ...] | None:
        return self.tools.get(id.primitive)

    def call(
        self, application: str, name: str, tokens: int, now: float, *, cached: int = 0
    ) -> list[Verb]:
        """Run a call that ends a second after it came. Return all advice that the engine got."""
        op = make_op(application, name, tokens)
        said = self.memory.queued(op, "m", True, now)
        self.memory.gate.admit("m", 1000, now)
        id = PrimitiveId(application, name)
        return [
            *said,
            *self.memory.finished("e", id, op, make_usage(tokens, cached), now + 1.0),
        ]


def test_a_context_without_a_future_reader_is_freed() -> None:
    """The engine is told at once, when the call ends."""
    assert World().call("a", "x", 100, 0.0) == [FreeContext("e", "x")]


def test_a_context_with_a_pending_consumer_is_kept_and_then_freed() -> None:
    """The reader's own context holds the same tokens, so the first context is freed when the reader
    ends.
    """
    world = World()
    world.wants["x"] = Want(tokens=40, pause_s=2.0)
    assert world.call("a", "x", 100, 0.0) == [AdviseContext("e", "x", 2.0, 40)]  # pinned as it is
    world.wants["x"] = None
    assert world.call("a", "y", 200, 2.0) == [FreeContext("e", "x"), FreeContext("e", "y")]


def test_the_kept_share_of_the_pool_is_capped() -> None:
    """Half of 1,000 tokens may be pinned. The third context of 200 is left for the
    engine to evict.
    """
    world = World()
    for name in "xyz":
        world.wants[name] = Want(tokens=200, pause_s=1.0)
    said = [world.call("a", name, 300, 0.0)[-1] for name in "xyz"]
    assert said == [
        AdviseContext("e", "x", 1.0, 200),
        AdviseContext("e", "y", 1.0, 200),
        RetainContext("e", "z", Retention.EVICTABLE),
    ]


def test_a_waiting_session_is_expected_by_its_earlier_pauses() -> None:
    """The first pause is unknown: 5 s. After pauses of 3 s and 1 s the session is expected in 2.16
    s, their geometric mean with the weights 0.7 and 0.3. While a turn runs, the context that it
    continues is pinned. After it, the longer context takes its place.
    """
    world = World()
    world.wants = dict.fromkeys("xyz", Want())
    assert world.call("a", "x", 100, 0.0) == [
        AdviseContext("e", "x", 5.0, None),
        RetainContext("e", "x", Retention.EVICTABLE),
    ]
    assert world.call("a", "y", 200, 4.0) == [
        RetainContext("e", "x", Retention.KEEP),
        FreeContext("e", "x"),
        AdviseContext("e", "y", 3.0, None),
        RetainContext("e", "y", Retention.EVICTABLE),
    ]
    assert world.call("a", "z", 300, 6.0)[2] == AdviseContext("e", "z", 3.0**0.7, None)


def test_the_servers_time_between_two_calls_is_no_pause() -> None:
    """Two of three calls follow without a pause. Only then the session waits ten seconds for a
    tool.
    """
    world = World()
    world.wants["d"] = Want()
    for name, now, moves_on in (("a", 0.0, True), ("b", 1.1, True), ("c", 2.3, False)):
        world.moves_on = moves_on
        world.call("s", name, 100, now)
    told = world.call("s", "d", 120, 13.3)
    assert AdviseContext("e", "d", 10.0, None) in told


def test_another_session_of_the_tenant_is_expected_alike() -> None:
    """A new session has no habit of its own, but other sessions that began like it had one."""
    world = World()
    world.wants = dict.fromkeys("xyz", Want())
    world.call("a", "x", 100, 0.0)
    world.call("a", "y", 200, 4.0)
    assert world.call("b", "z", 80, 5.0)[0] == AdviseContext("e", "z", 3.0, None)
    assert world.call("c", "z", 50, 7.0)[0] == AdviseContext("e", "z", UNKNOWN_PAUSE_S, None)


def test_a_closed_application_leaves_nothing() -> None:
    """Its contexts are freed once."""
    world = World()
    world.wants["x"] = Want()
    world.call("a", "x", 100, 0.0)
    assert world.memory.closed("a") == [FreeContext("e", "x")]
    assert world.memory.closed("a") == []


def test_a_paused_call_keeps_its_context_until_it_goes_on() -> None:
    """The engine may evict it, but it outlives other calls and guesses of its session. It is freed
    when the call that continues it has ended. The tool's ten seconds are a pause.
    """
    world = World()
    world.wants = {f"c{i}": Want() for i in range(5)}
    op = make_op("a", "p", 100)
    world.memory.queued(op, "m", True, 0.0)
    world.memory.gate.admit("m", 1000, 0.0)
    id = PrimitiveId("a", "p")
    assert world.memory.paused("e", id, op, make_usage(100), 1.0) == [
        AdviseContext("e", "p", 5.0, None),
        RetainContext("e", "p", Retention.EVICTABLE),
    ]
    said = [verb for i in range(5) for verb in world.call("a", f"c{i}", 20 + i, 11.0 + 2 * i)]
    assert FreeContext("e", "p") not in said and AdviseContext("e", "c0", 10.0, None) in said
    assert FreeContext("e", "p") in world.call("a", "goes on", 130, 40.0)
    late = make_op("a", "late", 60)
    world.memory.queued(late, "m", True, 50.0)
    world.memory.paused("e", PrimitiveId("a", "late"), late, make_usage(60), 51.0)
    assert world.memory.abandoned("c4") == world.memory.abandoned("nothing") == []
    assert world.memory.abandoned("late") == [FreeContext("e", "late")]


def pause(world: World, application: str, name: str, size: int, now: float) -> list[Verb]:
    """A call that comes into an open gate, writes ten tokens and pauses; what is said then."""
    op = make_op(application, name, size)
    world.memory.queued(op, "m", True, now)
    world.memory.gate.admit("m", 1000, now)
    id, written = PrimitiveId(application, name), tuple(range(size, size + 10))
    return world.memory.paused("e", id, op, make_usage(size), now, written)


def test_what_follows_a_paused_context_is_sent_after_it() -> None:
    """Only to the engine that has the context, only if prompt and output are continued token for
    token, and only as a whole."""
    world = World()
    pause(world, "a", "p", 100, 1.0)
    longer = make_op("a", "goes on", 130)
    sent = world.memory.continuing("e", longer)
    assert sent == replace(longer, parent="p", tokens=tuple(range(110, 130)))
    other = replace(longer, tokens=(*range(105), *range(500, 530)))
    alike = [make_op("b", "stranger", 130), make_op("a", "equal", 110), other]
    for op in (*alike, replace(longer, open=True)):
        assert world.memory.continuing("e", op) == op
    assert world.memory.continuing("f", longer) == longer
    pause(world, "a", "q", 150, 2.0)
    assert world.memory.continuing("e", make_op("a", "latest", 170)).parent == "q"
    world.memory.closed("a")
    assert world.memory.continuing("e", longer) == longer


def test_a_context_whose_tokens_are_not_all_known_is_continued_by_content() -> None:
    """The engine counts more tokens than its parts had."""
    world = World()
    op = make_op("a", "p", 100)
    world.memory.queued(op, "m", True, 0.0)
    world.memory.paused(
        "e", PrimitiveId("a", "p"), op, make_usage(100), 1.0, tuple(range(100, 109))
    )
    longer = make_op("a", "goes on", 130)
    assert world.memory.continuing("e", longer) == longer


def test_retention_can_be_switched_off() -> None:
    """Then every context is freed when its call ends, as in an ordinary server."""
    world = World("retention")
    world.wants["x"] = Want(pause_s=0.0)
    assert world.call("a", "x", 100, 0.0) == [FreeContext("e", "x")]


def test_guesses_are_few() -> None:
    """Of the branches that a session might continue, the four newest are kept."""
    world = World()
    world.wants = {f"c{i}": Want() for i in range(5)}
    freed = []
    for i in range(5):
        op = Op(
            id=f"c{i}",
            kind=Kind.GENERATE,
            context=f"c{i}",
            tokens=tuple(range(i * 100, i * 100 + 50)),
            hints=Hints(application="a"),
        )
        world.memory.queued(op, "m", True, 0.0)
        id = PrimitiveId("a", f"c{i}")
        verbs = world.memory.finished("e", id, op, make_usage(50), 1.0)
        freed += [verb for verb in verbs if isinstance(verb, FreeContext)]
    assert freed == [FreeContext("e", "c0")]


@pytest.mark.parametrize(("switched_off", "starts"), [((), False), (("admission",), True)])
def test_an_application_that_does_not_fit_waits(
    switched_off: tuple[str, ...], starts: bool
) -> None:
    """Of two applications of 600 tokens on a pool of 1,000, the second waits until the first has
    ended.
    """
    world = World(*switched_off)
    for name in "ab":
        world.memory.queued(make_op(name, name, 590), "m", True, 0.0)
    world.memory.gate.use("m").busy.note(1.0, 0.0)
    world.memory.gate.admit("m", 1000, 0.0)
    assert world.memory.gate.may_start("a")
    assert world.memory.gate.may_start("b") is starts
    world.memory.closed("a")
    world.memory.gate.admit("m", 1000, 1.0)
    assert world.memory.gate.may_start("b")


def test_one_shot_requests_are_never_held_up() -> None:
    """A chat without a session never returns to a context, so there is nothing to protect."""
    world = World()
    world.memory.queued(make_op("a", "a", 900), "m", True, 0.0)
    world.memory.gate.admit("m", 1000, 0.0)
    world.memory.queued(make_op("b", "b", 900), "m", False, 0.0)
    assert world.memory.gate.may_start("b")


def app(name: str, arrival: float, size: int, last: float | None = None) -> Application:
    """An application whose kind reaches `last` tokens in the end."""
    made = Application(name, "m", True, arrival, arrival, Habits(size=last))
    made.first = made.size = size
    return made


def names(found: tuple[Application, ...]) -> list[str]:
    return [one.id for one in found]


def test_an_application_grows_to_the_size_of_its_like() -> None:
    """It grows from 200 tokens to the 1,000 of earlier ones. If its kind is unknown, it grows by
    twice its first call.
    """
    assert (app("a", 0.0, 200, 1000.0).own, app("a", 0.0, 200, 1000.0).growth) == (200.0, 800.0)
    assert app("a", 0.0, 200).growth == 200 * GROWTH
    known = app("a", 0.0, 200, 1000.0)
    known.habits.shared = 150.0
    assert (known.own, known.growth) == (50.0, 800.0)


@pytest.mark.parametrize(
    ("sizes", "grown", "growing"),
    [
        ((), 0.0, 0.0),
        ((200,), 0.0, 1000.0),
        ((200, 200, 200), 0.0, 3000.0),  # those that began together are large together
        ((1000, 600, 200), 1000.0, 800.0),  # now; 400 tokens later two have 1,600, then one 1,000
        ((600, 200), 0.0, 1600.0),  # when the older one ends; now they have 800
    ],
)
def test_the_most_that_applications_will_hold_at_once(
    sizes: tuple[int, ...], grown: float, growing: float
) -> None:
    """All grow alike to 1,000 tokens and then leave. What still grows counts with a margin."""
    found = peak(app(str(size), 0.0, size, 1000.0) for size in sizes)
    assert found == pytest.approx(grown + growing / FILLED)


def test_what_does_not_grow_has_no_margin() -> None:
    """Two of 500 tokens fill a cache of 1,000 where neither will hold more, and only then."""
    for last, enter in ((500.0, ["a", "b"]), (510.0, ["a"])):
        waiting = [app("a", 1.0, 500, last), app("b", 2.0, 500, last)]
        assert names(admit(waiting, [], SATED, 3.0).enter) == enter


SATED = ModelPool(tokens=1000, recomputed=0.0, busy=1.0)


def test_applications_enter_in_their_turn_while_they_fit() -> None:
    """The third does not fit. A later one that would fit waits behind it."""
    waiting = [app(name, at, size, size) for name, at, size in _QUEUE]
    assert names(admit(waiting, [], SATED, 30.0).enter) == ["a", "b"]


_QUEUE = (("d", 24.0, 150), ("c", 3.0, 600), ("b", 2.0, 300), ("a", 1.0, 300))


def test_one_always_enters_an_empty_cache() -> None:
    """An application that needs more than the whole cache is admitted if it is alone."""
    assert names(admit([app("a", 0.0, 5000, 5000)], [], SATED, 1.0).enter) == ["a"]


@pytest.mark.parametrize(
    ("recomputed", "busy", "filling", "changed", "enters"),
    [
        (0.09, 0.9, 0.9, 9.0, True),  # cheap so far
        (0.11, 0.9, 0.9, 9.0, False),  # more than a tenth is recomputed
        (0.09, 1.0, 0.9, 9.0, False),  # the engines have no time to spare
        (0.09, 1.0, 0.7, 9.0, True),  # they decode, which leaves room for prompts
        (0.11, 1.0, 0.7, 9.0, False),
        (0.90, 0.5, 0.9, 9.0, True),  # they have time, and recomputing delays nothing
        (0.00, 0.5, 0.7, 1.0, False),  # the cost of the last one is not known yet
        (None, 0.9, 0.7, 9.0, False),  # the cost is unknown
        (None, 0.5, 0.9, 9.0, True),
    ],
)
def test_one_application_beyond_the_room_enters_while_it_is_cheap(
    recomputed: float | None, busy: float, filling: float, changed: float, enters: bool
) -> None:
    """The room is for what all will hold in the end. Now they hold a third of it. A context takes
    long to compute."""
    inside = [app("a", 0.0, 300, 900)]
    pool = ModelPool(
        tokens=1000,
        recomputed=recomputed,
        busy=busy,
        filling=filling,
        fill_s=0.01,
        changed=changed,
    )
    found = admit([app("b", 1.0, 300, 900), app("c", 2.0, 300, 900)], inside, pool, 10.0)
    assert names(found.enter) == (["b"] if enters else [])
    assert found.beyond is enters


def test_what_does_not_fit_now_enters_only_for_its_age() -> None:
    """While it waits, a later one that fits beside what the others hold goes before it."""
    inside = [app("a", 0.0, 600, 900)]
    waiting = [app("b", 1.0, 500, 900), app("c", 2.0, 300, 900)]
    spare = ModelPool(tokens=1000, recomputed=0.0, busy=0.5)
    assert names(admit(waiting, inside, spare, 10.0).enter) == ["c"]
    assert names(admit(waiting[:1], inside, spare, 10.0).enter) == []
    assert names(admit(waiting, inside, spare, PATIENCE_S + 2.0).enter) == ["b"]


def test_who_enters_for_its_age_takes_the_place_of_others() -> None:
    """The youngest leave at once until it fits. The oldest stays. No one leaves for an engine that
    reports no cached tokens."""
    inside = [app(name, at, 300, 300) for at, name in enumerate("acd")]
    waiting = [app("b", 1.0, 500, 900)]
    for share, out in ((0.5, ["d", "c"]), (0.0, ["d", "c"]), (None, [])):
        found = admit(waiting, inside, ModelPool(tokens=1000, recomputed=share), PATIENCE_S + 2.0)
        assert (names(found.enter), names(found.out)) == (["b"], out)


def test_no_application_waits_for_ever() -> None:
    """After two minutes the first is admitted whatever it costs, and the next one half a minute
    later.
    """
    inside = [app("a", 0.0, 1000, 1000)]
    waiting = [app("b", 1.0, 900, 900), app("c", 2.0, 900, 900)]
    early = admit(waiting, inside, SATED, PATIENCE_S)
    late = admit(waiting, inside, SATED, PATIENCE_S + 2.0)
    just = ModelPool(tokens=1000, forced=PATIENCE_S / 4 - 1.0)
    assert [names(one.enter) for one in (early, late)] == [[], ["b"]]
    assert late.forced
    assert names(admit(waiting, inside, just, PATIENCE_S + 2.0).enter) == []


@given(
    st.lists(
        st.tuples(st.floats(0.0, 200.0), st.integers(1, 1000), st.sampled_from("uvw")),
        min_size=1,
        max_size=8,
    )
)
def test_the_longest_wait_ends_first(waits: list[tuple[float, int, str]]) -> None:
    """Whatever their sizes and tenants, the one that is admitted for its age has waited longest,
    and one is admitted as soon as any has waited for two minutes.
    """
    now = 300.0
    inside = [replace(app("in", 0.0, 1000, 1000), salt="u")]  # so the others' turn is first
    waiting = [
        replace(app(str(number), since, size, size), since=since, salt=tenant)
        for number, (since, size, tenant) in enumerate(waits)
    ]
    found = admit(waiting, inside, SATED, now)
    oldest = min(waiting, key=lambda one: one.since)
    is_late = now - oldest.since > PATIENCE_S
    assert found.forced == is_late
    assert [one.since for one in found.enter] == ([oldest.since] if is_late else [])


@pytest.mark.parametrize(
    ("sizes", "out"),
    [
        ((900, 900), ["1"]),
        ((900,), []),  # The oldest stays whatever happens.
        ((1200, 300), ["1"]),
        ((600, 600, 300, 300), ["3", "2", "1"]),  # as many as do not fit now
        ((300, 300, 300, 300), ["3"]),
        ((600, 400), []),  # exactly
    ],
)
def test_the_youngest_leave_first_when_they_outgrow_the_pool(
    sizes: tuple[int, ...], out: list[str]
) -> None:
    """They fitted when they were smaller."""
    inside = [app(str(i), float(i), size, size) for i, size in enumerate(sizes)]
    excess = sum(sizes) - 1000
    crowded = admit([], inside, ModelPool(tokens=1000, again=excess + 1), 10.0)
    assert names(crowded.out) == out
    bearable = admit([], inside, ModelPool(tokens=1000, again=excess), 10.0)
    assert (names(bearable.out), bearable.crowded) == ([], excess > 0)


def test_small_applications_do_not_teach_that_large_ones_stay_small() -> None:
    """Two small applications end with 60 tokens each. Of two large ones, which begin with 310, the
    second waits, because nothing shows yet that they end with 320. When one has ended, two more fit
    at once.
    """
    world = World()
    for name in ("s", "t"):
        world.call(name, name, 50, 0.0)
        world.memory.closed(name)
    world.memory.gate.use("m").busy.note(1.0, 1.0)
    for name in "ab":
        world.memory.queued(make_op(name, name, 300), "m", True, 2.0)
    world.memory.gate.admit("m", 1000, 2.0)
    assert [world.memory.gate.may_start(name) for name in "ab"] == [True, False]
    usage = make_usage(310)
    world.memory.finished("e", PrimitiveId("a", "a"), make_op("a", "a", 300), usage, 3.0)
    world.memory.closed("a")
    world.memory.queued(make_op("c", "c", 310), "m", True, 3.0)
    world.memory.gate.admit("m", 1000, 3.0)
    assert [world.memory.gate.may_start(name) for name in "bc"] == [True, True]


def test_kinds_are_told_apart_by_their_first_call() -> None:
    """A first call up to half as long again is of the same kind, and the nearest kind counts. When
    there are many kinds, the one unseen for longest is forgotten.
    """
    known = Applications()

    def habits(first: int) -> Habits:
        return known.enter(f"{len(known)}", "m", "", True, 0.0, first).habits

    small, large = habits(100), habits(200)
    assert small is not large
    assert [habits(n) for n in (150, 67, 300, 134)] == [large, small, large, small]
    for power in range(MOST_KINDS - 1):
        habits(1000 * 2**power)
    assert habits(100) is small
    assert habits(200) is not large


@pytest.mark.parametrize(
    ("counts", "cached", "out"), [(True, 0, True), (False, 0, False), (False, 16, True)]
)
def test_no_application_leaves_for_an_engine_that_counts_no_cache(
    counts: bool, cached: int, out: bool
) -> None:
    """Two applications have outgrown the pool and found almost nothing in the cache. This shows an
    eviction only on an engine that reports its cached tokens. There the second waits when it
    returns, although no other one waited.
    """
    world = World()
    world.memory.has_pool("e", 1000, counts)
    world.wants = dict.fromkeys(("a1", "b1", "a2", "b2"), Want())
    for name, tokens, now in (("a1", 100, 0.0), ("b1", 100, 2.0), ("a2", 500, 4.0)):
        world.call(name[0], name, tokens, now, cached=cached)
    world.call("b", "b2", 500, 6.0)
    world.memory.gate.use("m").busy.note(1.0, 7.0)
    world.memory.gate.admit("m", 1000, 8.0)
    world.memory.queued(make_op("b", "b3", 700), "m", True, 8.5)
    assert world.memory.gate.may_start("b") is not out


def test_an_application_that_stays_away_gives_up_its_room() -> None:
    """An application does not count after four of its pauses and half a minute away. When it
    returns, it waits like the others.
    """
    world = World()
    world.wants["x"] = Want()
    world.call("a", "x", 900, 0.0)
    world.memory.queued(make_op("b", "b", 900), "m", True, 20.0)
    world.memory.gate.use("m").busy.note(1.0, 20.0)
    world.memory.gate.admit("m", 1000, 20.0)
    assert not world.memory.gate.may_start("b")
    world.memory.gate.admit("m", 1000, 40.0)
    assert world.memory.gate.may_start("b")
    world.memory.queued(make_op("a", "y", 950), "m", True, 41.0)
    world.memory.gate.admit("m", 1000, 41.0)
    assert not world.memory.gate.may_start("a")


@pytest.mark.parametrize(("pause_s", "away_s"), [(None, 30.0), (0.5, 5.0), (10.0, 40.0)])
def test_room_is_free_after_four_usual_pauses(pause_s: float | None, away_s: float) -> None:
    """And not before half a minute where no pause of the kind is known, else not before 5 s. So an
    agent that ends without a word holds up those that wait for a few seconds only.
    """
    one = app("a", 0.0, 300, 900)
    one.queued(300, 0.0)
    one.ended(10.0)
    if pause_s is not None:
        one.habits.learn_pause(pause_s)
    assert not one.is_dormant(10.0 + away_s - 0.1, 0.0)
    assert one.is_dormant(10.0 + away_s + 0.1, 0.0)


def test_a_lost_engine_keeps_nothing() -> None:
    """The end of a session frees no context on an engine that is gone."""
    world = World()
    world.wants["x"] = Want(pause_s=0.0)
    world.call("a", "x", 100, 0.0)
    world.memory.lost("e")
    assert world.memory.closed("a") == []


def test_a_pause_is_expected_by_its_tool() -> None:
    """A turn that calls a slow tool is expected later than one that calls a fast one."""
    world = World()
    for number, (tool, seconds) in enumerate([("fast", 0.1), ("slow", 30.0)] * 20):
        application, began = f"a{number}", 100.0 * number
        world.tools["p"] = (tool,)
        pause(world, application, "p", 100, began)
        world.memory.queued(make_op(application, "goes on", 130), "m", True, began + seconds)
        world.memory.closed(application)
    world.tools["p"] = ("fast",)
    [advice, *_] = pause(world, "x", "p", 100, 9000.0)
    assert isinstance(advice, AdviseContext) and advice.pause_s == pytest.approx(0.15, rel=0.3)
    world.tools["p"] = ("fast", "slow")
    [advice, *_] = pause(world, "y", "p", 100, 9000.0)
    assert isinstance(advice, AdviseContext) and advice.pause_s == pytest.approx(30.0, rel=0.5)


@pytest.mark.parametrize(("fill_s", "stays"), [(0.0001, False), (1.0, True)])
def test_an_application_leaves_during_a_pause_that_costs_more_than_computing_again(
    fill_s: float, stays: bool
) -> None:
    """The pause is expected to last 5 s. Where computing the context again is cheap, another
    application gets the room, and the first waits when it comes back. Of one that has left, no
    growth beyond its present call is expected."""
    world = World()
    costs = KvCosts(step_s=0.01, fill_s=fill_s, chunk=384)
    world.memory.has_pool("e", 1000, costs=costs)
    world.tools["p"] = ("look",)
    pause(world, "a", "p", 500, 1.0)
    assert world.memory.gate.is_admitted("a") is stays
    first = world.memory._applications.find("a")
    assert first is not None and (first.growth > 0) is stays
    world.memory.queued(make_op("b", "other", 600), "m", True, 2.0)
    world.memory.gate.admit("m", 1000, 2.0)
    assert world.memory.gate.may_start("b") is not stays
    if not stays:
        world.memory.queued(make_op("a", "goes on", 520), "m", True, 3.0)
        world.memory.gate.admit("m", 1000, 3.0)
        assert not world.memory.gate.may_start("a")
