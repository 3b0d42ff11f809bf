"""Where a request goes whose session or key another server may have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline_server.cluster.route import KeyPlace, Route, SessionPlace, key_route, route
from weftline_server.journal.replay import Opened
from weftline_server.journal.store import Stored

STORED = Stored(7, Opened("t", "s_7", "", 0.0, True), None)
OWNED = SessionPlace(STORED, 0, 2, "http://b:8600", False)
CLOSED = replace(OWNED, stored=replace(STORED, closed=9.0))
PLACES = st.builds(
    SessionPlace,
    st.sampled_from([OWNED.stored, CLOSED.stored]),
    st.integers(0, 3),
    st.integers(1, 3),
    st.just("http://b:8600"),
    st.booleans(),
)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (None, Route.UNKNOWN),
        (OWNED, Route.PASS),
        (replace(OWNED, owner=1), Route.WAIT),  # this server is about to restore it
        (replace(OWNED, is_fenced=True), Route.WAIT),
        (replace(OWNED, deaths=2), Route.RESTS),
        (CLOSED, Route.VIEW),
        (replace(CLOSED, is_fenced=True), Route.VIEW),
    ],
)
def test_the_route_of_a_session(place: SessionPlace | None, expected: Route) -> None:
    """For server 1."""
    assert route(1, place, may_open=False, was_viewed=False) is expected


@given(st.none() | PLACES, st.booleans(), st.booleans())
def test_a_session_is_passed_to_an_owner_that_holds_it_alone(
    place: SessionPlace | None, may_open: bool, was_viewed: bool
) -> None:
    """Never to this server itself, to a fenced one, or for a closed session; and what was read from
    the store in vain is not read again.
    """
    went = route(1, place, may_open=may_open, was_viewed=was_viewed)
    if went is Route.PASS:
        assert place is not None and place.owner != 1 and not place.is_fenced
        assert place.stored.closed is None
    assert not (went is Route.VIEW and was_viewed)
    assert (went is Route.OPEN) == (may_open and (place is None or place.stored.closed is not None))


@given(st.none() | PLACES, st.integers(1, 3), st.booleans(), st.booleans())
def test_a_key_is_handled_here_only_if_no_other_server_can_have_it(
    place: SessionPlace | None, server: int, is_fenced: bool, is_known: bool
) -> None:
    """Here if it is this server's, or if its server has ended and what it did is here. A session
    that this server owns, and has not restored yet, is waited for.
    """
    session = None if place is None else "s_7"
    key = KeyPlace(b"d", session, server, "http://b:8600", is_fenced)
    went = key_route(1, key, place, is_known=is_known)
    assert (went is Route.UNKNOWN) == (server == 1 or (is_fenced and is_known))
    if server != 1 and not is_fenced:
        assert went is Route.PASS
    elif went is Route.PASS:
        assert place is not None and place.owner != 1 and not place.is_fenced
    if server != 1 and is_fenced and not is_known and place is not None and place.owner == 1:
        assert went in (Route.WAIT, Route.VIEW, Route.RESTS)
    assert key_route(1, None, None, is_known=False) is Route.UNKNOWN
