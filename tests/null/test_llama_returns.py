"""Which slots of llama-server are written because the conversations in them may go on."""

from __future__ import annotations

import pytest

from tests.null.llama_desk import SHARED, bench
from weftline_engine import api
from weftline_engine.remote.llamacpp.slots import Seat
from weftline_engine.remote.llamacpp.state_cut import StateCut


def test_a_freed_context_is_written_while_such_contexts_return() -> None:
    """Conversations without a session take turns on one slot, and one of them goes on. Later none
    does, and nothing is written any more: a copy costs a twentieth of computing."""
    desk = bench(1)

    def speak(tokens: tuple[int, ...], name: str) -> Seat:
        seat = desk.run(tokens, name=name)
        desk.book.contexts.free(name)
        desk.told()
        return seat

    speak(SHARED, "a1")
    seat = speak((9, *SHARED), "b1")
    assert seat.save is not None and seat.save.tokens == (*SHARED, 7)
    seat = speak((*SHARED, 7, 8, 5), "a2")
    assert (seat.restore is not None, seat.found) == (True, len(SHARED) + 1)
    writes = [speak((100 + at, *SHARED), f"c{at}").save is not None for at in range(80)]
    assert all(writes[1:30]) and not any(writes[45:])


@pytest.mark.parametrize(("returns", "found"), [(api.Return.OFTEN, 1), (api.Return.SELDOM, 0)])
def test_an_agent_is_believed_to_return(returns: api.Return, found: int) -> None:
    """Two agents without a session begin alike. The first one's slot is written before the second
    takes it for their common beginning, though little of the first one's own would be lost."""
    desk, own = bench(4), 60
    for agent in range(2):
        tokens = (*SHARED, *range(100 * agent, 100 * agent + own))
        seat = desk.run(tokens, name=f"a{agent}", returns=returns)
        desk.book.contexts.free(f"a{agent}")
    assert (seat.slot, seat.found) == (0, len(SHARED))
    assert sum(one.save is not None for one in desk.seats) == found
    again = desk.run((*SHARED, *range(own), 7, 5), returns=returns)
    assert again.found == (len(SHARED) + own + 1 if found else len(SHARED))


@pytest.mark.parametrize("cut", [StateCut.ANYWHERE, StateCut.KEPT])
def test_conversations_beyond_the_slots_compute_only_what_is_new(cut: StateCut) -> None:
    """Six of them, without a session, take three turns each on four slots."""
    desk = bench(4, cut=cut)
    said = {chat: tuple(range(1000 * chat, 1000 * chat + 710)) for chat in range(6)}
    for turn in range(3):
        for chat, before in said.items():
            said[chat] = (*before, *range(1000 * turn, 1000 * turn + 200))
            seat = desk.run(said[chat], borders=(710,))
            desk.book.contexts.free(seat.call.op)
            desk.told()
            assert turn == 0 or seat.found == len(before) - 1
            said[chat] = (*said[chat], 7, 8)


@pytest.mark.parametrize("cut", [StateCut.ANYWHERE, StateCut.KEPT])
def test_an_agent_whose_answers_are_rewritten_keeps_its_prompt(cut: StateCut) -> None:
    """Each of its prompts begins with the one before, without that answer. Between them others take
    the only slot. What is new of a prompt is little, but the slot is written again."""
    desk, prompt, new = bench(1, cut=cut), SHARED, []
    for turn in range(8):
        seat = desk.run(prompt)
        new.append(len(prompt) - seat.found)
        desk.book.contexts.free(seat.call.op)
        desk.told()
        prompt = (*prompt, *range(200 * turn, 200 * turn + 100))
        other = desk.run(tuple(range(5000 + 500 * turn, 5000 + 500 * turn + 200)))
        desk.book.contexts.free(other.call.op)
        desk.told()
    assert new[0] == len(SHARED) and max(new[1:]) <= 100 + 3
