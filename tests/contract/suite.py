"""The contract: one suite that runs on every engine.

A module that imports `EngineContract` provides the fixture `target`: a started engine, and the
greedy answers to compare with.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.target import Heard, Target
from weftline_engine import api

LONG = 200  # tokens, so that an op still runs when it is cancelled
MARK, MARK_ID = "<|im_start|>", 1  # a special token of SmolLM2


class EngineContract:
    """The tests. A subclass in each engine's module runs them."""

    async def test_greedy_text_is_exact(self, target: Target) -> None:
        """Each question alone gives its answer, its finish reason and its usage."""
        for question in target.questions[:3]:
            (heard,) = await target.run(target.op(question))
            assert heard.text == target.answer(question)
            assert heard.finished is not None and heard.failed is None
            assert heard.finished.reason is api.FinishReason.LENGTH
            assert heard.finished.usage.output_tokens == 12
            assert heard.finished.usage.prompt_tokens > 12
            assert heard.finished.usage.started <= heard.finished.usage.filled

    async def test_it_streams(self, target: Target) -> None:
        """Text comes in several parts, offsets count tokens, and the end comes last."""
        question = target.questions[0]
        (heard,) = await target.run(target.op(question, name="streamed", attempt=2))
        told = [event for event in heard.events if not isinstance(event, api.ContextMoved)]
        assert len(heard.parts) > 1 and told[-1] is heard.finished
        at = 0
        for part in heard.parts:
            assert part.offset == at
            at += len(part.tokens)
        assert {event.attempt for event in heard.events} == {2}
        assert heard.text == target.answer(question)
        assert target.sequences == list(range(1, len(target.sequences) + 1))

    async def test_a_stop_string_ends_the_text_before_it(self, target: Target) -> None:
        """The stop string begins in the middle of one token and ends in another."""
        question = target.questions[1]
        pieces = target.answers[question]
        stop = (pieces[3] + pieces[4])[1:]
        whole = target.answer(question)
        (heard,) = await target.run(target.op(question, stop=(stop, "never said")))
        assert heard.text == whole[: whole.index(stop)]
        assert heard.finished is not None
        assert heard.finished.reason is api.FinishReason.STOP
        assert heard.finished.usage.stopped_by == (stop if target.names_stop else "")

    async def test_a_stop_token_ends_the_text_before_it(self, target: Target) -> None:
        """It ends the text although the end token would not, and beside a stop string. A token of
        another text changes nothing."""
        if not target.can(api.Capability.SAMPLING):
            pytest.skip("this engine takes no stop_token_ids")
        question = target.questions[1]
        (whole,) = await target.run(target.op(question))
        ids = [token for part in whole.parts for token in part.tokens]
        if len(ids) < 12:
            pytest.skip("this engine does not say its tokens")
        at = next(i for i in range(4, 12) if ids[i] not in ids[:i])
        other = next(token for token in range(12) if token not in ids[: at + 1])
        said = "".join(target.answers[question][:at])
        for stop in ((), ("never said",)):
            op = target.op(question, stop_token_ids=(other, ids[at]), ignore_eos=True, stop=stop)
            (heard,) = await target.run(op)
            assert heard.text == said
            assert heard.finished is not None
            assert heard.finished.reason is api.FinishReason.STOP

    async def test_marks_are_seen(self, target: Target) -> None:
        """Special tokens that an op names are in its text, or else their ids are told."""
        told = target.description
        if not target.can(api.Capability.LOGIT_BIAS) or not (told.tokenizer or told.chat_template):
            pytest.skip("what has no tokens and no template has no marks")
        op = target.op(
            target.questions[0], max_tokens=3, logit_bias=((MARK_ID, 100.0),), marks=(MARK,)
        )
        [heard] = await target.run(op)
        ids = [token for part in heard.parts for token in part.tokens]
        assert heard.text == MARK * 3 or (heard.text, ids) == ("", [MARK_ID] * 3)

    async def test_concurrent_forks_do_not_mix(self, target: Target) -> None:
        """Twelve at once share a prefix, and some are equal. Each gets its own answer."""
        asked = [*target.questions, *target.questions, *target.questions][:12]
        ops = [target.op(question) for question in asked]
        heard = await target.run(*ops)
        assert [one.text for one in heard] == [target.answer(question) for question in asked]

    async def test_contexts_fork(self, target: Target) -> None:
        """A filled prefix has several children, and may be freed while they run."""
        if not target.can(api.Capability.CONTEXTS):
            pytest.skip("this engine announces no contexts")
        ops = [target.op(question) for question in target.questions]
        tokens = [op.tokens or () for op in ops]
        shared = next(
            i for i, column in enumerate(zip(*tokens, strict=False)) if len({*column}) > 1
        )
        root = api.Op(
            id="root", kind=api.Kind.FILL, context="root.context", tokens=tokens[0][:shared]
        )
        target.engine.submit(root)
        filled = await target.end("root")
        assert filled.finished is not None and filled.parts == []
        assert filled.finished.reason is api.FinishReason.FILLED
        forks = [replace(op, parent=root.context, tokens=(op.tokens or ())[shared:]) for op in ops]
        for op in forks:
            target.engine.submit(op)
        target.engine.retain(root.context, api.Retention.EVICTABLE)
        target.engine.free(root.context)
        heard = [await target.end(op.id) for op in forks]
        assert [one.text for one in heard] == [target.answer(q) for q in target.questions]
        for op in forks:
            target.engine.free(op.context)
        (orphan,) = await target.run(replace(ops[0], id="orphan", parent="root.context"))
        assert orphan.failed is not None and orphan.failed.error == "InvalidRequest"
        assert not orphan.failed.retryable

    async def test_a_prompt_may_come_in_pieces(self, target: Target) -> None:
        """An op is opened with its first tokens and fed twice. A cancelled one takes no more."""
        if not target.can(api.Capability.FEED):
            pytest.skip("this engine takes whole prompts only")
        question = target.questions[2]
        op = target.op(question)
        tokens = op.tokens or ()
        for name in ("fed", "given-up"):
            target.engine.submit(replace(op, id=name, context=name, tokens=tokens[:20], open=True))
        target.engine.feed("fed", 20, tokens[20:40], False)
        target.engine.cancel("given-up")
        target.engine.feed("given-up", 20, tokens[20:], True)
        target.engine.feed("fed", 40, tokens[40:], True)
        fed = await target.end("fed")
        assert fed.text == target.answer(question)
        given_up = await target.end("given-up")
        assert given_up.failed is not None and given_up.failed.error == "Cancelled"

    async def test_a_tool_call_pauses_and_goes_on(self, target: Target) -> None:
        """The same text as without pausing; then the tool's answer alone is sent, and the text is
        that of one op with the whole prompt."""
        if not target.can(api.Capability.RETENTION):
            pytest.skip("this engine does not pause")
        question = target.questions[1]
        pieces = target.answers[question]
        stop = (pieces[5] + pieces[6])[1:]
        called = pieces[2]
        op = target.op(question, name="calls", stop=(stop,), pause_on=("never said", called))
        target.engine.submit(op)
        heard = await target.end("calls")
        whole = target.answer(question)
        assert heard.text == whole[: whole.index(stop)]
        assert heard.finished is None and heard.paused is not None
        assert heard.paused.reason == called
        output = tuple(token for part in heard.parts for token in part.tokens)
        assert heard.paused.usage.output_tokens == len(output)
        target.engine.update("calls", api.Hints(expected_pause=1.0))
        tool = (target.op(target.questions[2]).tokens or ())[-20:]
        more = replace(target.op(question), tokens=tool, parent=op.context)
        alone = replace(target.op(question), tokens=(*(op.tokens or ()), *output, *tool))
        (went_on,) = await target.run(more)
        target.engine.free(op.context)
        (expected,) = await target.run(alone)
        assert went_on.finished is not None and went_on.text == expected.text
        usage = went_on.finished.usage
        assert usage.prompt_tokens == len(alone.tokens or ())
        # No step of the first op had computed the last token of its output.
        found = len(op.tokens or ()) + len(output) - 1
        assert usage.cached_tokens >= found - found % target.grain

    async def test_it_reports_what_is_left_of_a_context(self, target: Target) -> None:
        """A context is reported when its op ends, and says no more when it is freed."""
        if not target.can(api.Capability.REPORTS):
            pytest.skip("this engine does not report its contexts")
        op = target.op(target.questions[3], name="reported")
        await target.run(op)
        computed = len(op.tokens or ()) + 11  # the last of 12 was not computed
        left = computed - computed % target.grain

        def reported(heard: Heard) -> bool:
            return any(isinstance(one, api.ContextMoved) and one.tokens for one in heard.events)

        heard = await target.until(op.id, reported)
        moved = [event for event in heard.events if isinstance(event, api.ContextMoved)][-1]
        assert (moved.context, moved.residency) == (op.context, api.Residency.RESIDENT)
        assert moved.tokens == left

    async def test_an_unknown_kind_is_refused(self, target: Target) -> None:
        """An op of a kind that the engine does not announce ends as InvalidRequest."""
        if not target.can(api.Capability.REPORTS):
            pytest.skip("the server sends no other kinds to this engine")
        (heard,) = await target.run(replace(target.op(target.questions[0]), kind="embed"))
        assert heard.failed is not None and heard.failed.error == "InvalidRequest"

    async def test_cancel_ends_one_and_spares_its_neighbour(self, target: Target) -> None:
        """An op is cancelled twice in the middle of its text. It reports that once, and its place
        is free.
        """
        first, second = target.questions[:2]
        target.engine.submit(target.op(first, name="cancelled", max_tokens=LONG))
        target.engine.submit(target.op(second, name="spared"))
        await target.until("cancelled", lambda heard: len(heard.parts) >= 2)
        target.engine.cancel("cancelled")
        target.engine.cancel("cancelled")
        target.engine.cancel("never there")
        spared = await target.end("spared")
        assert spared.text == target.answer(second)
        cancelled = await target.end("cancelled")
        assert cancelled.failed is not None and cancelled.finished is None
        assert (cancelled.failed.error, cancelled.failed.retryable) == ("Cancelled", False)
        assert len(cancelled.parts) < LONG
        (again,) = await target.run(target.op(first))
        ends = [one for one in cancelled.events if isinstance(one, api.Finished | api.Failed)]
        assert again.text == target.answer(first) and ends == [cancelled.failed]

    async def test_new_hints_change_no_text(self, target: Target) -> None:
        """A reader comes to an op that runs, and another asks for throughput. Neither is an error,
        on an engine without updates and after the op's end, too.
        """
        question = target.questions[2]
        op = replace(target.op(question, name="told"), hints=api.Hints(unread=True))
        target.engine.submit(op)
        later = api.Hints(application="a", turn=30.0, criterion="throughput")
        target.engine.update("told", replace(later, unread=True))
        await target.until("told", lambda heard: bool(heard.parts))
        target.engine.update("told", later)
        heard = await target.end("told")
        target.engine.update("told", later)
        target.engine.update("never there", later)
        assert heard.finished is not None and heard.text == target.answer(question)
        target.engine.free(op.context)

    async def test_a_prompt_that_is_too_long_fails_alone(self, target: Target) -> None:
        """It fails with a type of weftline's and is not retryable. The engine goes on."""
        question = target.questions[0]
        op = target.op(question)
        limit = target.description.context_limit
        if op.tokens is not None:
            op = replace(op, tokens=op.tokens * (limit // len(op.tokens) + 1))
        elif op.chat is not None:
            message = {"role": "user", "content": "word " * (limit + 1)}
            op = replace(op, chat=api.Chat(messages=(message,)))
        else:
            op = replace(op, text="word " * (limit + 1))
        (heard,) = await target.run(op)
        assert heard.failed is not None and heard.parts == []
        assert heard.failed.error in ("ContextTooLong", "InvalidRequest")
        assert heard.failed.retryable is False and heard.failed.message
        assert (await target.run(target.op(question)))[0].text == target.answer(question)

    async def test_tenants_get_the_same_text(self, target: Target) -> None:
        """Salts separate caches and never change results. A tenant's second call reports hits."""
        question = target.questions[0]
        salts = ("a" * 16, "b" * 16, "a" * 16)
        heard = [(await target.run(target.op(question, salt=salt)))[0] for salt in salts]
        assert {one.text for one in heard} == {target.answer(question)}
        if target.can(api.Capability.SALT) and target.can(api.Capability.USAGE):
            cached = [one.finished.usage.cached_tokens for one in heard if one.finished]
            assert cached[0] == cached[1] == 0 < cached[2]
