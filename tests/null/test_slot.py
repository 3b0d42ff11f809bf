"""What an engine's slot believes its cache to hold: never more than the engine's pool."""

from __future__ import annotations

from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.slot import MAX_PREFIXES, Slot, Work


def sent(*prefixes: tuple[str, int]) -> Work:
    op = api.Op(id="o", kind=api.Kind.GENERATE, context="o", tokens=(1,))
    return Work(PrimitiveId("s", "c", 0), "m", op, 0.0, 1, prefixes)


def slot(kv_tokens: int | None) -> Slot:
    return Slot("e", None, description=api.Description(model="m", kv_tokens=kv_tokens))


def test_the_longest_unused_goes_first_and_of_a_prompt_its_end() -> None:
    """A pool of 300 tokens, prompts of 128 tokens, each with a beginning of 64."""
    one = slot(300)
    one.remember(sent(("a", 64), ("a+", 128)))
    one.remember(sent(("b", 64), ("b+", 128)))
    assert (set(one.prefixes), one.held) == ({"a", "a+", "b", "b+"}, 256)
    one.remember(sent(("c", 64)))
    assert (set(one.prefixes), one.held) == ({"a", "b", "b+", "c"}, 256)
    one.remember(sent(("a", 64), ("a+", 128)))
    assert (set(one.prefixes), one.held) == ({"a", "a+", "b", "c"}, 256)
    one.remember(sent(("a", 64), ("a+", 128)))
    assert (set(one.prefixes), one.held) == ({"a", "a+", "b", "c"}, 256)
    assert one.load().prefixes == one.prefixes
    one.forget()
    assert (one.prefixes, one.held) == ({}, 0)


def test_an_engine_that_says_no_size_is_bounded_all_the_same() -> None:
    """Ten thousand prompts leave so many hashes and no more."""
    one = slot(None)
    for number in range(10_000):
        one.remember(sent((str(number), 64)))
    assert len(one.prefixes) == MAX_PREFIXES
    assert one.held == 64 * MAX_PREFIXES
