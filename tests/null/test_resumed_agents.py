"""Whether an agent of a client without a session has ended: its answer called no tool."""

from __future__ import annotations

from weftline_server.schedule.memory.applications import Application, Applications


def answered(apps: Applications, name: str, tokens: int, now: float) -> Application:
    """A call of an application ends, and calls none of the tools that it was offered."""
    one = apps.enter(name, "m", "t", True, now, tokens)
    one.queued(tokens, now)
    one.newest.end_unknown = True
    one.ended(now + 1.0)
    one.newest.calls_nothing = True
    return one


def test_agents_that_go_on_behind_such_an_answer_are_not_read_last() -> None:
    """Each of them gives its room to others all the same. Kinds are told apart by the length of the
    first call."""
    apps = Applications()
    first = answered(apps, "first", 100, 0.0)
    assert first.has_likely_ended and first.is_read_last
    answered(apps, "first", 120, 10.0)
    assert first.has_likely_ended and not first.is_read_last
    assert not answered(apps, "second", 100, 20.0).is_read_last
    assert answered(apps, "long", 9000, 20.0).is_read_last


def test_agents_that_end_are_read_last_again() -> None:
    apps = Applications()
    answered(apps, "first", 100, 0.0)
    answered(apps, "first", 120, 10.0)
    ended = []
    for number in range(8):
        ended.append(answered(apps, f"ends {number}", 100, 20.0).is_read_last)
        apps.leave(f"ends {number}")
    assert not ended[0] and ended[-1] and ended == sorted(ended)
