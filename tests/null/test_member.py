"""The server's record of one engine: the load of its ops and the prefixes it should hold."""

from __future__ import annotations

from dataclasses import replace

from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.engines.member import Member, Work


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
