"""What an engine's slot believes its cache to hold: never more than the engine's pool."""

from __future__ import annotations

from dataclasses import replace

from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.engines.slot import MAX_PREFIXES, Slot, Work


def sent(*prefixes: tuple[str, int]) -> Work:
    op = api.Op(id="o", kind=api.Kind.GENERATE, context="o", tokens=(1,))
    return Work(PrimitiveId("s", "c"), "m", op, 0.0, 1, prefixes)


def slot(kv_tokens: int | None) -> Slot:
    return Slot("e", None, description=api.Description(model="m", kv_tokens=kv_tokens))


def test_the_longest_unused_goes_first_and_of_a_prompt_its_end() -> None:
    """A pool of 300 tokens, prompts of 128 tokens, each with a beginning of 64."""
    one = slot(300)
    one.remember(sent(("a", 64), ("a+", 128)))
    one.remember(sent(("b", 64), ("b+", 128)))
    assert (set(one.prefixes), one.prefix_tokens) == ({"a", "a+", "b", "b+"}, 256)
    one.remember(sent(("c", 64)))
    assert (set(one.prefixes), one.prefix_tokens) == ({"a", "b", "b+", "c"}, 256)
    one.remember(sent(("a", 64), ("a+", 128)))
    assert (set(one.prefixes), one.prefix_tokens) == ({"a", "a+", "b", "c"}, 256)
    one.remember(sent(("a", 64), ("a+", 128)))
    assert (set(one.prefixes), one.prefix_tokens) == ({"a", "a+", "b", "c"}, 256)
    assert one.load().prefixes == one.prefixes
    one.forget()
    assert (one.prefixes, one.prefix_tokens) == ({}, 0)


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
    one.description = api.Description(model="n", kv_tokens=300)
    assert one.load().model == "n"


def test_it_has_no_work_with_what_lay_in_its_cache() -> None:
    """Two calls with one beginning of 64 tokens hold it once; the first had to compute it, the
    second not, however much either gets fed."""
    one, first = slot(300), replace(sent(("a", 64)), tokens=100)
    second = replace(first, op=replace(first.op, id="p"))
    for work in (first, second):
        one.hold(work)
        one.remember(work)
    assert (one.load().held, one.load().latency) == (136, 136)
    one.release("o")
    assert (one.load().held, one.load().latency) == (100, 36)
    one.hold(replace(second, tokens=110))
    assert (one.load().held, one.load().latency) == (110, 46)


def test_an_engine_that_says_no_size_is_bounded_all_the_same() -> None:
    """Ten thousand prompts leave so many hashes and no more."""
    one = slot(None)
    for number in range(10_000):
        one.remember(sent((str(number), 64)))
    assert len(one.prefixes) == MAX_PREFIXES
    assert one.prefix_tokens == 64 * MAX_PREFIXES
