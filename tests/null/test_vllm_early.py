"""Which open prompts of a vLLM have their beginnings filled early."""

from __future__ import annotations

import asyncio

from weftline_engine import api
from weftline_engine.remote.prefix_cache.open_prompts import WARM_TOKENS, OpenPrompt, OpenPrompts

TASK = tuple(range(2 * WARM_TOKENS + 1))  # two blocks, and the token that completes them


def added(prompts: OpenPrompts, name: str, tokens: tuple[int, ...], salt: str = "") -> OpenPrompt:
    op = api.Op(id=name, kind=api.Kind.GENERATE, context=name, tokens=tokens, salt=salt, open=True)
    return prompts.add(op, tokens)


def test_prompts_that_begin_alike_are_filled_once() -> None:
    """The task of a program stands before each of its thirty prompts."""
    prompts = OpenPrompts()
    due = [prompts.due(added(prompts, f"review {i}", TASK)) for i in range(30)]
    assert due == [2 * WARM_TOKENS] + [None] * 29


def test_a_beginning_of_its_own_is_filled() -> None:
    """The second prompt has only its first block in common, and the third another salt."""
    prompts = OpenPrompts()
    other = (*TASK[:WARM_TOKENS], *(7 for _ in range(WARM_TOKENS + 1)))
    due = [
        prompts.due(added(prompts, "a", TASK)),
        prompts.due(added(prompts, "b", other)),
        prompts.due(added(prompts, "c", TASK, salt="another tenant")),
    ]
    assert due == [2 * WARM_TOKENS] * 3


def test_an_incomplete_block_is_left_to_the_call() -> None:
    """vLLM computes the last token of a prompt anew, with its block."""
    prompts = OpenPrompts()
    one = added(prompts, "a", TASK[:WARM_TOKENS])
    assert prompts.due(one) is None
    one.tokens += [5]
    assert prompts.due(one) == WARM_TOKENS
    assert prompts.due(one) is None


def test_a_call_that_starts_leaves_its_beginning_to_the_next_prompt() -> None:
    """Its blocks may be evicted when it ends, so that the prompt that still waits fills them."""
    prompts = OpenPrompts()
    first, second = added(prompts, "a", TASK), added(prompts, "b", TASK)
    assert (prompts.due(first), prompts.due(second)) == (2 * WARM_TOKENS, None)
    assert prompts.pop("a") is first and prompts.pop("a") is None
    assert prompts.due(second) == 2 * WARM_TOKENS


async def test_nothing_is_computed_twice_at_the_same_time() -> None:
    """A prompt that has grown waits while another one fills their common beginning."""
    prompts, done = OpenPrompts(), asyncio.Event()
    first = added(prompts, "a", TASK[: WARM_TOKENS + 1])
    second = added(prompts, "b", TASK)

    async def fill() -> None:
        await done.wait()

    assert prompts.due(first) == WARM_TOKENS
    first.warming = asyncio.create_task(fill())
    assert prompts.due(second) is None
    done.set()
    await first.warming
    assert prompts.due(second) == 2 * WARM_TOKENS
