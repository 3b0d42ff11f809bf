"""The decisions of servers that share a store, for random clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline_server.cluster.card import Card, Peer, digest_of, refusal, replaced
from weftline_server.cluster.session_lease import Lease, LeaseState
from weftline_server.cluster.takeover import (
    TOGETHER,
    Orphan,
    heir,
    is_quarantined,
    next_trial,
    share,
    to_fence,
)

SERVERS = st.lists(st.integers(1, 1 << 31), min_size=1, max_size=8, unique=True)
SESSIONS = st.lists(st.integers(1, 1 << 62), max_size=60, unique=True)
CARD = Card("http://a:8600", "a", "0.3.0", "null", "k")


@given(SERVERS, SESSIONS)
def test_each_orphan_has_one_heir(servers: list[int], sessions: list[int]) -> None:
    """The shares of all living servers are all orphans, each once, in whatever order the servers
    know each other.
    """
    orphans = [Orphan(number) for number in sessions]
    shares = [one for me in servers for one in share(me, servers[::-1], orphans)]
    assert sorted(one.number for one in shares) == sorted(sessions)


@given(SERVERS.filter(lambda found: len(found) > 1), SESSIONS)
def test_the_end_of_an_heir_moves_its_share_alone(servers: list[int], sessions: list[int]) -> None:
    """What another server adopts stays with that server."""
    gone, *rest = servers
    for session in sessions:
        before = heir(session, servers)
        assert before == gone or heir(session, rest) == before


def test_shares_are_about_equal() -> None:
    """Of 3,000 orphans each of three servers adopts 1,000, within a tenth."""
    counts = Counter(heir(session, [7, 8, 9]) for session in range(3000))
    assert all(900 < counts[server] < 1100 for server in (7, 8, 9)), counts


@given(
    st.lists(st.tuples(st.sampled_from("rdf"), st.floats(0.01, 3.0)), max_size=30),
    st.floats(0.5, 5.0),
    st.floats(-600, 600),
)
def test_a_held_lease_was_taken_over_by_nobody(
    steps: list[tuple[str, float]], lease_s: float, skew: float
) -> None:
    """Renewals arrive late (r), get lost (d), or a fence is tried (f), whatever the clocks say. The
    model of the database ends the lease only after its own expiry. While the server's own clock
    says HELD, it has not.
    """
    here, lease = 100.0, Lease(1, lease_s, 100.0)
    expires, is_fenced = here + skew + lease_s, False
    for kind, took in steps:
        sent = here
        here += took
        there = here + skew
        if kind == "f" and there > expires:
            is_fenced = True
        elif kind == "r" and is_fenced:
            lease = lease.fenced()
        elif kind == "r":
            expires = there + lease_s
            lease = lease.renewed(sent)
        if lease.state(here) is LeaseState.HELD:
            assert not is_fenced
        assert (lease.state(here) is LeaseState.LOST) <= is_fenced


def peer(number: int, left_s: float, card: Card = CARD) -> Peer:
    return Peer(number, replace(card, address=f"http://{number}:8600", host=str(number)), left_s)


@given(st.dictionaries(st.integers(1, 9), st.floats(-10, 10), max_size=6), st.floats(0, 20))
def test_only_expired_leases_are_ended_and_only_by_a_steady_server(
    left: dict[int, float], steady_s: float
) -> None:
    """A server that has just come back itself ends no lease, and never its own."""
    peers = [peer(number, seconds) for number, seconds in left.items()]
    expected = {number for number, seconds in left.items() if seconds < 0 and number != 1}
    assert set(to_fence(1, peers, steady_s, 5.0)) == (expected if steady_s >= 5.0 else set())


@given(st.lists(st.builds(Orphan, st.integers(1, 1 << 62), st.integers(0, 4)), max_size=100))
def test_suspects_are_restored_alone_and_the_convicted_never(orphans: list[Orphan]) -> None:
    """Trials follow each other until none is left: each orphan had one, apart from those in
    quarantine.
    """
    left, tried = list({one.number: one for one in orphans}.values()), list[Orphan]()
    while (trial := next_trial(left)) is not None:
        found = [one for one in left if one.number in trial.sessions]
        assert 0 < len(found) <= TOGETHER
        assert len(found) == 1 or not any(one.deaths for one in found)
        assert trial.seconds > 0
        tried += found
        left = [one for one in left if one.number not in trial.sessions]
    assert all(is_quarantined(one.deaths) for one in left)
    assert not any(is_quarantined(one.deaths) for one in tried)


def test_a_session_that_kills_is_found_among_thirty_two() -> None:
    """One of 32 sessions kills whoever restores it. Two servers die, then it is in quarantine, and
    all others run.
    """
    orphans, runs, deaths = {number: Orphan(number) for number in range(32)}, set[int](), 0
    while (trial := next_trial(orphans.values())) is not None:
        if 13 in trial.sessions:
            deaths += 1
            for number in trial.sessions:
                orphans[number] = Orphan(number, orphans[number].deaths + 1)
        else:
            runs |= {orphans.pop(number).number for number in trial.sessions}
    assert deaths == 2
    assert list(orphans) == [13] and runs == set(range(32)) - {13}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({}, None),
        ({"version": "0.2.9"}, None),
        ({"version": "0.4.0rc1"}, None),
        ({"version": "0.5.0"}, "upgrade one release at a time"),
        ({"version": "1.3.0"}, "upgrade one release at a time"),
        ({"models": "llama"}, "serve the same models"),
        ({"keys": "other"}, "other API keys or tenants"),
        ({"address": CARD.address}, "an address of its own with --address"),
    ],
)
def test_a_server_that_does_not_fit_is_refused(other: dict[str, str], said: str | None) -> None:
    """It says why. A server whose lease has expired is not asked."""
    card = replace(CARD, **{"address": "http://b:8600", "host": "b", **other})
    found = refusal(CARD, [Peer(2, card, 3.0)])
    assert found is None if said is None else said in str(found)
    assert refusal(CARD, [Peer(2, card, -1.0)]) is None


def test_a_server_replaces_its_earlier_run() -> None:
    """It has the same address on the same machine, and perhaps another model now."""
    earlier = Peer(2, replace(CARD, models="llama"), 3.0)
    assert refusal(CARD, [earlier]) is None
    assert replaced(CARD, [earlier, peer(3, 2.0)]) == [2]


def test_the_digest_of_keys() -> None:
    """Equal for equal keys and tenants in any order, and for nothing else."""
    keys = {"one": "a", "two": "b"}
    assert digest_of(keys, "s") == digest_of({"two": "b", "one": "a"}, "s")
    others = [({"one": "b", "two": "a"}, "s"), ({"one": "a"}, "s"), ({}, "s"), (keys, "t")]
    assert digest_of(keys, "s") not in [digest_of(*one) for one in others]
