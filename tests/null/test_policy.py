"""Placement as tables: a queue and engines in, starts out (Parrot section 5.4)."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.contract.protocol import Criterion
from weftline_engine.api import GROUP_WEIGHT, PATIENCE_S, Hints
from weftline_server.schedule.engines.capacity import latency_tokens
from weftline_server.schedule.placement import round as placement_round
from weftline_server.schedule.placement.round import place
from weftline_server.schedule.placement.round_data import EngineLoad, Placement, Queued
from weftline_server.schedule.placement.scores import Candidate
from weftline_server.schedule.turns import MOST_OVERTAKEN_S, turn


def queued(id: str, at: float = 0.0, tokens: int = 100, **more: Any) -> Queued:
    """Build a queued primitive of an application that comes `at` this time, and whose work takes
    0.02 s a token. Options that are no field of Queued are hints."""
    fields = ("model", "kind", "prefixes", "open", "tenant")
    own = {k: more.pop(k) for k in fields if k in more}
    criterion = Criterion(more.get("criterion", "latency"))
    hints = Hints(turn=turn(at, 0.02 * more.get("work_left", 0), criterion, 0), **more)
    own = {"model": "m", "kind": "generate", **own}
    return Queued(id=id, queued=at, tokens=tokens, hints=hints, **own)


def engine(name: str, **more: Any) -> EngineLoad:
    held = more.get("latency", 0) + more.get("throughput", 0)
    return EngineLoad(**{"name": name, "model": "m", "held": held, **more})


def placed(
    queue: list[Queued], engines: list[EngineLoad], policy: str = "app", now: float = 0.0
) -> dict[str, str]:
    return {p.id: p.engine for p in place(queue, engines, policy, now)}


def test_request_policy_is_first_come_first_served() -> None:
    """As in an ordinary server, applications, groups and prefixes play no part."""
    queue = [queued("b", at=2.0, work_left=1), queued("a", at=1.0, work_left=999)]
    expected = [Placement("a", "e"), Placement("b", "e")]
    assert place(queue, [engine("e")], "request", 3.0) == expected


def test_the_application_with_the_least_left_goes_first() -> None:
    """A chat's one call goes before the hundred calls of a batch, although these came earlier."""
    queue = [queued("batch", at=1.0, work_left=50_000), queued("chat", at=2.0, work_left=300)]
    assert list(placed(queue, [engine("e", max_running=1)], now=2.0)) == ["chat"]


def test_equal_applications_in_the_order_of_arrival() -> None:
    """Of two calls that queued together the older application's goes first."""
    queue = [queued("young", at=2.0, arrival=5.0), queued("old", at=2.0, arrival=0.0)]
    assert list(placed(queue, [engine("e")])) == ["old", "young"]


def test_in_an_application_the_deeper_call_goes_first() -> None:
    """A call that more calls wait for starts earlier."""
    queue = [queued("sink", depth=0), queued("source", depth=3)]
    assert list(placed(queue, [engine("e")])) == ["source", "sink"]


def test_nothing_starves() -> None:
    """An old enough call of a large application goes before the small ones that keep coming."""
    old = queued("large", at=0.0, work_left=64_000)
    for waited, first in ((0.0, "small"), (90.0, "large")):
        queue = [old, queued("small", at=waited, work_left=200)]
        assert list(placed(queue, [engine("e", max_running=1)], now=waited)) == [first]


def test_load_is_spread_over_replicas() -> None:
    """Each call goes to the engine with the fewest tokens in hand, counting those just placed."""
    queue = [queued(id, at=i) for i, id in enumerate("abc")]
    engines = [engine("e1", running=2, latency=200), engine("e2")]
    assert placed(queue, engines) == {"a": "e2", "b": "e2", "c": "e1"}


def test_a_call_goes_where_its_prefix_is() -> None:
    """It goes to the busier engine as long as the prefix saves more than the load costs."""
    prefixes = (("short", 64), ("long", 1024))
    engines = [engine("idle"), engine("warm", latency=500, running=1, prefixes={"short", "long"})]
    assert placed([queued("a", tokens=1100, prefixes=prefixes)], engines) == {"a": "warm"}
    assert placed([queued("a", tokens=200, prefixes=prefixes[:1])], engines) == {"a": "idle"}
    engines[1] = replace(engines[1], barred={"long"})  # it has the blocks, and no state behind them
    assert placed([queued("a", tokens=1100, prefixes=prefixes)], engines) == {"a": "idle"}


def test_cached_tokens_are_no_load() -> None:
    """Users of one long prompt do not repel each other: only tokens left to compute are load."""
    engines = [engine("popular", held=5000, latency=300, running=3), engine("plain", latency=400)]
    assert placed([queued("a", tokens=200)], engines) == {"a": "popular"}


def test_sharers_in_the_queue_meet() -> None:
    """Four calls of two prefixes on two idle engines: each prefix is computed once."""
    queue = [
        queued(f"{p}{i}", at=i, tokens=1100, prefixes=((f"{p}64", 64), (f"{p}1024", 1024)))
        for i in range(2)
        for p in "xy"
    ]
    where = placed(queue, [engine("e1"), engine("e2")])
    assert where["x0"] == where["x1"] != where["y0"] == where["y1"]


def test_a_call_waits_for_the_full_engine_that_has_its_prefix() -> None:
    """The other engine has room but would cost more. After its patience the call goes there."""
    here: dict[str, Any] = {"name": "here", "running": 1, "held": 1500, "prefixes": {"p"}}
    here["kv_tokens"] = 2000
    call = queued("a", tokens=1100, prefixes=(("p", 1000),))
    full = engine(**here, latency=1500)
    assert placed([call], [full, engine("idle")]) == {}
    assert placed([call], [full, engine("idle")], now=PATIENCE_S) == {}
    assert placed([call], [full, engine("idle")], now=PATIENCE_S + 1) == {"a": "idle"}
    assert placed([call], [full, engine("idle")], "request") == {"a": "idle"}
    # The queue before it is so long that recomputing is faster.
    busy = engine(**here, latency=4001)
    assert placed([call], [busy, engine("idle")]) == {"a": "idle"}
    room = engine(**{**here, "kv_tokens": 2600}, latency=1500)
    assert placed([call], [room, engine("idle")]) == {"a": "here"}


def test_a_late_call_that_fits_nowhere_is_kept_an_engine() -> None:
    """After its patience no smaller call takes the room that comes free on one of the engines."""
    large, small = queued("large", tokens=900), queued("small", at=PATIENCE_S, tokens=100)
    roomy = engine("roomy", latency=500, running=1, kv_tokens=1000)
    other = engine("other", latency=600, running=1, kv_tokens=1000)
    for now, one, two in ((PATIENCE_S, "roomy", "roomy"), (PATIENCE_S + 1, None, "other")):
        assert placed([large, small], [roomy], now=now).get("small") == one
        assert placed([large, small], [roomy, other], now=now) == {"small": two}


def test_a_hash_without_the_shorter_ones_is_no_prefix() -> None:
    """A shared prefix begins at the first token."""
    prefixes = (("a", 64), ("b", 1024))
    engines = [engine("e1"), engine("e2", prefixes={"b"})]
    assert placed([queued("q", tokens=1100, prefixes=prefixes)], engines) == {"q": "e1"}


def test_a_group_stays_together_while_it_fits_and_splits_when_not() -> None:
    """Maps of one reduce stay on one engine until its KV cache is full."""
    queue = [queued(f"m{i}", at=i, tokens=50, group="g") for i in range(4)]
    assert set(placed(queue, [engine("e1"), engine("e2")]).values()) == {"e1"}
    small = [engine("e1", kv_tokens=110), engine("e2", kv_tokens=110)]
    assert placed(queue, small) == {"m0": "e1", "m1": "e1", "m2": "e2", "m3": "e2"}


def test_latency_and_throughput_keep_apart() -> None:
    """A chat avoids the engine that runs a batch job, even if that engine has less in hand."""
    engines = [engine("bulk", throughput=300, running=3), engine("chat", latency=500, running=2)]
    queue = [queued("user"), queued("job", criterion="throughput")]
    assert placed(queue, engines) == {"user": "chat", "job": "bulk"}


def test_a_latency_call_bounds_what_runs_beside_it() -> None:
    """The measured profile says how many tokens an engine may have in flight (Figure 10). Bulk
    calls keep this bound beside a user's call. A group shares the step: one member always runs, and
    more up to GROUP_WEIGHT tokens for each token of users. Every call keeps the bound beside one
    with a bound on each token.
    """
    user, job = queued("a", tokens=200), queued("a", tokens=200, criterion="throughput")
    member, typist = queued("a", tokens=200, group="g"), queued("a", tokens=200, criterion="tpot")

    def takes(item: Queued, now: float = 0.0, **load: Any) -> bool:
        """Whether the call is placed beside this many tokens, on an engine whose bound is 1,000."""
        return bool(placed([item], [engine("e", running=1, latency_tokens=1000, **load)], now=now))

    chatting = {"latency": 900, "bounded": 900}
    expected = [True, False, True, False]
    assert [takes(x, **chatting) for x in (user, job, member, typist)] == expected
    for others, fits in ((GROUP_WEIGHT * 900 - 200, True), (GROUP_WEIGHT * 900 - 199, False)):
        beside = {"latency": 900, "bounded": 900, "grouped": int(others), "held": 900 + int(others)}
        assert takes(member, **beside) is fits
        assert takes(job, PATIENCE_S + 1, **beside) is fits
        assert not takes(job, **beside)
    assert all(takes(x, PATIENCE_S + 1, **chatting) for x in (user, job, member, typist))
    typing: dict[str, Any] = {"latency": 900, "bounded": 900, "strict": {""}}
    assert not any(takes(x, **typing) for x in (user, job, member, typist))
    bulk = {"throughput": 600, "latency": 300}
    # Bulk work pauses for a user.
    assert all(takes(x, **bulk) for x in (user, job, member, typist))
    mixed: dict[str, Any] = {"throughput": 600, "latency": 300, "bounded": 300, "strict": {""}}
    assert [takes(x, **mixed) for x in (user, job, member, typist)] == [True, False, False, True]
    assert placed([queued("a", tokens=5000)], [engine("e", latency_tokens=1000)]) == {"a": "e"}


TOKENS = st.integers(1, 2000)
OTHERS = st.lists(st.tuples(TOKENS, st.sampled_from(["", "g"])), min_size=1, max_size=6)


URGENT = st.sampled_from([one for one in Criterion if one is not Criterion.THROUGHPUT])


@given(OTHERS, st.lists(URGENT, min_size=6, max_size=6), TOKENS, st.data())
def test_a_criterion_holds_up_no_call_of_another_tenant(
    others: list[tuple[int, str]], asked: list[Criterion], tokens: int, data: st.DataObject
) -> None:
    """Tenant b's calls are on the engine. Tenant a's call is placed beside them however urgent b
    says that they are, if it is placed where b asks for nothing.
    """
    of_a = queued(
        "a",
        at=1.0,
        tokens=tokens,
        tenant="a",
        criterion=data.draw(st.sampled_from(Criterion)).value,
        group=data.draw(st.sampled_from(["", "g"])),
    )
    load = engine("e", kv_tokens=9000, latency_tokens=1000)

    def is_placed(criteria: list[Criterion]) -> bool:
        calls = [
            queued(f"b{n}", tokens=size, tenant="b", criterion=criterion.value, group=group)
            for n, ((size, group), criterion) in enumerate(zip(others, criteria, strict=False))
        ]
        candidate = Candidate(load)
        for call in calls:
            candidate.place(call)
        return candidate.room(of_a.of, False, "a") >= tokens

    assert is_placed(asked) or not is_placed([Criterion.LATENCY] * 6)


def test_a_strict_call_bounds_those_of_its_tenant_on_all_servers() -> None:
    """Also where the tenant has no name, as on a server without keys, and where the strict call
    came in the same round."""
    load = engine("e", latency=900, bounded=900, latency_tokens=1000, strict={"b"})
    for tenant, found in (("b", {}), ("a", {"x": "e"}), ("", {"x": "e"})):
        assert placed([queued("x", tokens=200, tenant=tenant)], [load]) == found
    first = queued("s", tokens=900, tenant="b", criterion="tpot")
    second = queued("x", at=1.0, tokens=200, tenant="b")
    alone = [engine("e", latency_tokens=1000)]
    assert placed([first, second], alone) == {"s": "e"}
    assert set(placed([first, replace(second, tenant="c")], alone)) == {"s", "x"}


def test_early_fills_block_no_call() -> None:
    """Calls that they wait for may start beside them, however much early fills hold. Another early
    fill may not start when early fills have filled the cache.
    """
    held = {"early": 2000, "running": 5, "kv_tokens": 2000, "latency_tokens": 1000}
    member, typist = queued("a", tokens=900, group="g"), queued("b", tokens=900, criterion="tpot")
    for item in (member, typist, queued("c", tokens=5000)):
        assert placed([item], [engine("e", **held)]) == {item.id: "e"}
    early = queued("d", tokens=10, open=True)
    assert placed([early], [engine("e", **held)]) == {}


def test_a_shared_prefix_counts_once() -> None:
    """Ten calls of 1,000 share a system prompt of 900 tokens. They fit where the cache holds two
    thousand, and a step that reads the prompt once bears all ten.
    """
    more: dict[str, Any] = {"tokens": 1000, "criterion": "tpot"}
    prefixes = (("short", 64), ("long", 900))
    queue = [queued(f"q{i}", at=i, prefixes=prefixes, **more) for i in range(12)]
    held = {"latency": 1000, "bounded": 1000, "strict": {""}, "running": 1}
    for limit in ("kv_tokens", "latency_tokens"):
        assert len(placed(queue, [engine("e", **{limit: 1900})])) == 10
        some: dict[str, Any] = {"shared": {"short", "long"}, **held}
        assert len(placed(queue, [engine("e", **some, **{limit: 1900})])) == 9
        other = [queued(f"q{i}", at=i, prefixes=(("else", 900),), **more) for i in range(2)]
        assert len(placed(other, [engine("e", **some, **{limit: 1999})])) == 0


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ((), None),
        (((512, 0.010),), None),
        (((512, 0.010), (2048, 0.010)), None),  # more tokens make no step longer
        (((512, 0.010), (2048, 0.020)), 5120),  # on to 40 ms
        (((512, 0.010), (2048, 0.030), (8192, 0.050)), 5120),  # half way to the third point
        (((512, 0.030), (2048, 0.090)), 1280),  # twice the smallest step
    ],
)
def test_the_bound_from_the_profile(
    profile: tuple[tuple[int, float], ...], expected: int | None
) -> None:
    """A step may take 40 ms, or twice the smallest step where that is longer."""
    assert latency_tokens(profile) == expected


def test_a_call_without_room_stays_queued() -> None:
    """A call without room stays in the queue. It does not block a call for another model."""
    queue = [queued("a", at=0), queued("b", at=1), queued("other", at=2, model="n")]
    engines = [engine("e", running=7, max_running=8), engine("f", model="n")]
    assert placed(queue, engines, "request") == {"a": "e", "other": "f"}


def test_an_early_fill_takes_no_place_that_a_call_could_need() -> None:
    """Early fills come after whole calls and use at most half of the places."""
    queue = [queued("early", at=0.0, open=True), queued("whole", at=1.0)]
    assert list(placed(queue, [engine("e", max_running=4)])) == ["whole", "early"]
    assert list(placed(queue, [engine("e", max_running=4, running=2)])) == ["whole"]


ITEMS = st.builds(
    lambda id, at, tokens, group, bulk, left, shared: queued(
        str(id),
        at=at,
        tokens=tokens,
        group=group,
        criterion="throughput" if bulk else "latency",
        work_left=left,
        prefixes=((shared, 64),),
    ),
    st.uuids(),
    st.floats(0, 50),
    st.integers(65, 400),
    st.sampled_from(["", "g", "h"]),
    st.booleans(),
    st.integers(0, 9999),
    st.sampled_from(["p", "q"]),
)


@given(
    st.lists(ITEMS, min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(400, 900),
    st.lists(st.floats(0.0, 30.0), min_size=40, max_size=40),
)
def test_a_call_that_comes_later_goes_before_another_for_a_bounded_time(
    queue: list[Queued], places: int, room: int, seconds: list[float]
) -> None:
    """On an engine that ends its calls in any order, no call starts before one that was queued
    MOST_OVERTAKEN_S earlier, whatever their sizes, groups and criteria, and all of them start.
    Calls come at a tenth of the times in `queue`, so some wait for minutes.
    """
    left = {item.id: _later(item) for item in queue}
    ends: list[tuple[float, Queued]] = []
    now = 0.0
    while left:
        waiting = [item for item in left.values() if item.queued <= now]
        held = sum(item.tokens for _, item in ends)
        bounded = sum(item.tokens for _, item in ends if item.bounded)
        load = engine("e", running=len(ends), max_running=places, kv_tokens=room, bounded=bounded)
        load = replace(load, held=held, latency_tokens=300)
        started = [p.id for p in place(waiting, [load], "app", now)]
        for id in started:
            one = left.pop(id)
            for other in waiting:
                if other.id in left and other.id not in started:
                    assert one.queued < other.queued + MOST_OVERTAKEN_S
            ends.append((now + seconds[len(left)], one))
        ends.sort(key=itemgetter(0))
        coming = min((item.queued for item in left.values() if item.queued > now), default=inf)
        now = min(coming, ends[0][0] if ends else inf, now + 30.0 if waiting else inf)
        ends = [(end, item) for end, item in ends if end > now]


def _later(item: Queued) -> Queued:
    """The same call, of an application that came at ten times the time."""
    turn = item.hints.turn + 9 * item.queued
    return replace(item, queued=10 * item.queued, hints=replace(item.hints, turn=turn))


@given(st.lists(ITEMS, max_size=30), st.integers(1, 4), st.sampled_from(["app", "request"]))
def test_limits_hold_whatever_the_queue(queue: list[Queued], count: int, policy: str) -> None:
    """No engine exceeds its places or its KV cache, none gets an op twice, and none idles beside
    work.
    """
    engines = [engine(f"e{i}", max_running=3, kv_tokens=500) for i in range(count)]
    placements = place(queue, engines, policy, now=60.0)
    assert len({p.id for p in placements}) == len(placements)
    by_id = {item.id: item for item in queue}
    for load in engines:
        there = [by_id[p.id] for p in placements if p.engine == load.name]
        assert len(there) <= 3
        twice = len(there) - len({item.prefixes for item in there})
        assert len(there) <= 1 or sum(item.tokens for item in there) - 64 * twice <= 500
    assert bool(placements) == bool(queue)


@given(st.lists(ITEMS, max_size=40), st.integers(1, 3), st.sampled_from([300, 600, 900]))
def test_skipping_most_of_a_long_queue_misses_no_call(
    queue: list[Queued], count: int, size: int
) -> None:
    """Most of a long queue is skipped by the roomiest engine's room, with the same result as asking
    each.
    """
    engines = [
        engine(f"e{i}", kv_tokens=size, latency_tokens=400, shared={"p"}, held=64 * i, running=i)
        for i in range(count)
    ]
    short = place(queue, engines, "app", now=60.0)

    def every(replicas: placement_round._Replicas, item: Queued, late: bool) -> dict[int, float]:
        engines = enumerate(replicas.engines)
        return {index: engine.room(item.of, late, None) for index, engine in engines}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement_round._Replicas, "rooms", every)
        assert place(queue, engines, "app", now=60.0) == short


def test_an_engine_gets_only_the_kinds_that_it_announces() -> None:
    """This holds whatever its load: a fill goes to engines that announce fill, and an unknown kind
    to an engine that announces it. An op whose kind no engine announces waits.
    """
    engines = [
        engine("generates", kinds=frozenset({"generate"})),
        engine("fills", kinds=frozenset({"fill", "generate"}), latency=9000, running=5),
        engine("sleeps", kinds=frozenset({"sleep"})),
    ]
    kinds = ("generate", "fill", "sleep", "search")
    queue = [queued(kind, at=i, kind=kind) for i, kind in enumerate(kinds)]
    for policy in ("app", "request"):
        expected = {"generate": "generates", "fill": "fills", "sleep": "sleeps"}
        assert placed(queue, engines, policy) == expected
    elsewhere = [engine("other", model="n", kinds=frozenset({"search"}))]
    assert placed(queue[3:], elsewhere) == {}


def test_an_op_without_a_prompt_waits_for_no_prefix_and_needs_no_kv_cache() -> None:
    """Its tokens estimate its work: it takes a place, but no room in a full KV cache."""
    both = frozenset({"generate", "embed"})
    full = {"held": 1000, "kv_tokens": 1000, "latency_tokens": 1000, "kinds": both}
    embeds = [queued(f"e{i}", at=i, tokens=500, kind="embed") for i in range(3)]
    assert len(placed(embeds, [engine("e", running=1, **full)])) == 3
    assert len(placed(embeds, [engine("e", running=1, max_running=3, **full)])) == 2
    room = {"held": 0, "kv_tokens": 1000, "kinds": both}
    both_kinds = [*embeds, queued("call", at=9.0, tokens=1000)]
    assert len(placed(both_kinds, [engine("e", **room)])) == 4
    assert placed(embeds[:1], [engine("busy", latency=99, **room), engine("idle", **room)]) == {
        "e0": "idle"
    }


def test_a_round_counts_the_other_sort_twice_as_soon_as_it_is_placed() -> None:
    """The user's call takes the empty engine. It counts 200 tokens there for the throughput call,
    which goes to the other engine: a user's call of 75 tokens counts 150 there."""
    queue = [queued("batch", tokens=10, criterion="throughput"), queued("user")]
    assert placed(queue, [engine("a"), engine("b", latency=75)]) == {"user": "a", "batch": "b"}
