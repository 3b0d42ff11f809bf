"""An engine's slot: the load of the ops it has in hand, and the prefixes it should hold."""

from __future__ import annotations

from dataclasses import replace

from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.engines.slot import Slot, Work


def sent(*prefixes: tuple[str, int]) -> Work:
    op = api.Op(id="o", kind=api.Kind.GENERATE, context="o", tokens=(1,))
    return Work(PrimitiveId("s", "c"), "m", op, 0.0, 1, prefixes)


def slot(kv_tokens: int | None) -> Slot:
    return Slot("e", None, description=api.Description(model="m", kv_tokens=kv_tokens))


def test_what_it_has_in_hand_is_summed_up_anew_only_where_it_changed() -> None:
    """Held, fed, released, or described anew; an op that it never had changes nothing."""
    one, work = slot(300), sent(("a", 64))
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


def test_it_has_no_work_with_what_lay_in_its_cache() -> None:
    """Two calls with one beginning of 64 tokens hold it once; the first had to compute it, the
    second not, however much either gets fed."""
    one, first = slot(300), replace(sent(("a", 64)), tokens=100)
    second = replace(first, op=replace(first.op, id="p"))
    for work in (first, second):
        one.hold(work)
    assert (one.load().held, one.load().latency) == (136, 136)
    one.release("o")
    assert (one.load().held, one.load().latency) == (100, 36)
    one.hold(replace(second, tokens=110))
    assert (one.load().held, one.load().latency) == (110, 46)
