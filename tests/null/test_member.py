"""The server's record of one engine: the load of its ops and the prefixes it should hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.engines.member import Member, Work
from weftline_server.schedule.placement.round_data import Queued
from weftline_server.schedule.placement.scores import Candidate


def sent(*prefixes: tuple[str, int]) -> Work:
    op = api.Op(id="o", kind=api.Kind.GENERATE, context="o", tokens=(1,))
    return Work(PrimitiveId("s", "c"), "m", op, 0.0, 1, prefixes)


def member(kv_tokens: int | None) -> Member:
    return Member("e", None, description=api.Description(model="m", kv_tokens=kv_tokens))


def test_the_load_follows_the_ops_it_holds() -> None:
    """The load changes when an op is held, fed, released or described again. An unknown op changes
    nothing.
    """
    one, work = member(300), sent(("a", 64))
    idle = one.load()
    one.hold(work)
    assert (idle.running, one.load().running, one.load().latency) == (0, 1, 1)
    assert one.load() is one.load()
    assert one.release("of another engine") is None and one.load().running == 1
    one.hold(replace(work, tokens=5))
    assert (one.load().running, one.load().latency) == (1, 5)
    released = one.release("o")
    assert released is not None and one.load() == idle
    one.describe(api.Description(model="n", kv_tokens=300))
    assert one.load().model == "n"


def test_calls_at_different_points_of_their_outputs_are_never_all_large() -> None:
    """Two calls of 100 tokens with 40 of output hold 200 at their ends. When the first has written
    30, it leaves 10 steps later, and then the second has 70 tokens: never more than 170 together.
    Progress counts where a call comes or ends. The prefix of a call that ends stays with another.
    """
    one, first = member(300), generating("o", 60, 40)
    one.hold(first)
    assert (one.load().held, one.load().apart) == (100, 0)
    one.ops.answer("o", tuple(range(30)))
    one.hold(generating("p", 60, 40))
    assert (one.load().held, one.load().apart) == (200, 30)
    assert one.ops.left() == {"app o": 10, "app p": 40}
    call = Queued(id="q", model="m", kind="generate", queued=0.0, tokens=1, hints=api.Hints())
    assert Candidate(one.load()).room(call.of, False, None) == 130
    one.release("p")
    one.hold(replace(generating("p", 60, 40), prefixes=(("a", 50),)))
    one.hold(replace(generating("r", 60, 1), prefixes=(("a", 50),)))
    assert (one.load().held, one.load().apart) == (100 + 100 + 11, 30 + 11)
    one.hold(replace(generating("s", 60, 40), op=replace(generating("s", 60, 40).op, tokens=None)))
    assert one.ops.left()["app s"] == 0, "an engine that takes text tells no progress"


def generating(name: str, prompt: int, output: int) -> Work:
    sampling = api.SamplingParams(max_tokens=output)
    work = sent()
    hints = api.Hints(application=f"app {name}")
    op = replace(work.op, id=name, context=name, tokens=(1,) * prompt, sampling=sampling)
    return replace(work, op=replace(op, hints=hints), tokens=prompt + output)


def test_cached_tokens_are_no_work() -> None:
    """Two calls with a common prefix of 64 tokens hold it once. The first had to compute it, the
    second did not, however much either is fed.
    """
    one, first = member(300), replace(sent(("a", 64)), tokens=100)
    second = replace(first, op=replace(first.op, id="p"))
    for work in (first, second):
        one.hold(work)
    assert (one.load().held, one.load().latency) == (136, 136)
    one.release("o")
    assert (one.load().held, one.load().latency) == (100, 36)
    one.hold(replace(second, tokens=110))
    assert (one.load().held, one.load().latency) == (110, 46)


def elsewhere(**more: Any) -> api.Elsewhere:
    return api.Elsewhere(
        **{"op": "", "attempt": 0, "sequence": 1, "time": 0.0, "servers": 2, **more}
    )


def test_what_other_servers_have_is_load_and_known_prefixes() -> None:
    """Their calls count like ours. Their contexts are known until they are dropped. The engine's
    ledger says how much of the cache is ours.
    """
    one = Member("e", None, description=api.Description(model="m", kv_tokens=300, is_shared=True))
    one.hold(sent(("a", 64)))
    assert one.others.room == 300 and one.others.needs(10, 5) is None
    told = elsewhere(running=2, held=90, latency=40, grouped=3, throughput=7, bounded=60, room=100)
    told = replace(told, strict=("b",))
    one.used_elsewhere(replace(told, grant=4, came=(("1.c", (("b", 64), ("c", 128))),)))
    load = one.load()
    assert (load.servers, load.running, load.held, load.latency) == (2, 3, 91, 41)
    assert (load.grouped, load.throughput, load.bounded) == (3, 7, 61)
    assert load.strict == {"b"}
    assert {"a", "b", "c"} <= set(load.prefixes) and one.is_busy
    assert one.others.room == 100
    assert one.others.needs(10, 5) == api.Claim(used=10, wanted=5, seen=4)
    assert one.others.needs(10, 5) is None, "the engine knows"
    one.used_elsewhere(elsewhere(moved=(("1.c", api.Residency.RESIDENT, 64, None),)))
    assert "b" in one.load().prefixes and "c" not in one.load().prefixes
    one.used_elsewhere(elsewhere(servers=1, moved=(("1.c", api.Residency.DROPPED, 0, None),)))
    assert set(one.load().prefixes) == {"a"} and one.load().servers == 1
    described = one.op(sent(("a", 64)), 0.0).hints.footprint
    assert described == api.Footprint(held=1, computed=1, bounded=True, prefixes=(("a", 64),))
    one.describe(api.Description(model="m", kv_tokens=300))
    assert one.load().running == 1 and one.op(sent(), 0.0).hints.footprint is None
