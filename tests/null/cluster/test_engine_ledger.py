"""The ledger of an engine that several servers use: who may fill the cache, and who hears what."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from weftline_engine.api import Claim, Elsewhere, Footprint, Residency
from weftline_engine.transport.tcp.kv_grants import KvGrants, fair
from weftline_engine.transport.tcp.share_ledger import EngineLedger

PREFIXES = (("a", 64), ("b", 128))


def test_each_gets_what_it_wants_up_to_an_equal_share_of_what_others_leave() -> None:
    """The rest is shared out, so that nobody waits for room that nobody uses."""
    assert fair(900, {1: 100, 2: 700, 3: 500}) == {1: 100, 2: 400, 3: 400}
    assert fair(900, {1: 0, 2: 0, 3: 0}) == {1: 300, 2: 300, 3: 300}
    assert fair(900, {1: 300, 2: 0, 3: 0}) == {1: 500, 2: 200, 3: 200}
    assert fair(10, {}) == {}


def test_a_grant_waits_until_the_other_server_has_seen_that_it_has_less() -> None:
    """Server 2 gets its half when server 1 has answered, and only what server 1 does not hold."""
    grants = KvGrants(1000)
    grants.enter(1)
    assert grants.offer(1).tokens == 1000
    grants.claim(1, Claim(used=200, wanted=0, seen=grants.offer(1).number))
    grants.enter(2)
    grants.claim(2, Claim(used=0, wanted=800, seen=0))
    assert (grants.offer(1).tokens, grants.offer(2).tokens) == (200, 0)
    # Meanwhile server 1 has admitted another application, by its old grant.
    grants.claim(1, Claim(used=350, wanted=0, seen=grants.offer(1).number))
    assert (grants.offer(1).tokens, grants.offer(2).tokens) == (350, 650)
    grants.leave(1)
    assert grants.offer(2).tokens == 1000


class _LateServer:
    """A server whose messages take any time. It admits by the last grant that it has seen."""

    def __init__(self) -> None:
        self.down: deque[tuple[int, int]] = deque()  # grants on their way: number and tokens
        self.up: deque[Claim] = deque()
        self.grant = (0, 0)
        self.used = 0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from(["admit", "end", "hear", "say"]), st.integers(0, 500)
        ),
        max_size=120,
    )
)
def test_servers_never_admit_more_than_the_cache_whatever_is_on_its_way(
    steps: list[tuple[int, str, int]],
) -> None:
    """Three servers admit and end applications while grants and claims are on their way."""
    grants, servers = KvGrants(1000), [_LateServer() for _ in range(3)]
    sent = [-1, -1, -1]

    def tell() -> None:
        for number, server in enumerate(servers):
            offer = grants.offer(number)
            if offer.number != sent[number]:
                sent[number] = offer.number
                server.down.append((offer.number, offer.tokens))

    for number in range(3):
        grants.enter(number)
    tell()
    for number, verb, tokens in steps:
        server = servers[number]
        if verb == "admit":
            wanted = tokens
            if server.used + tokens <= server.grant[1]:
                server.used, wanted = server.used + tokens, 0
            server.up.append(Claim(used=server.used, wanted=wanted, seen=server.grant[0]))
        elif verb == "end":
            server.used = max(0, server.used - tokens)
            server.up.append(Claim(used=server.used, wanted=0, seen=server.grant[0]))
        elif verb == "hear" and server.down:
            server.grant = server.down.popleft()
            server.up.append(Claim(used=server.used, wanted=0, seen=server.grant[0]))
        elif verb == "say" and server.up:
            grants.claim(number, server.up.popleft())
            tell()
        assert sum(one.used for one in servers) <= 1000


def report(ledger: EngineLedger, server: int, before: Elsewhere | None = None) -> Elsewhere:
    found = ledger.report(server, before)
    assert found is not None
    return found


def test_a_server_hears_of_the_load_and_the_contexts_of_the_others() -> None:
    """Each hears of the others' ops alone. What has not changed is not told again."""
    ledger = EngineLedger(1000)
    ledger.enter(1)
    ledger.enter(2)
    first = report(ledger, 2)
    assert (first.servers, first.running, first.held) == (2, 0, 0)
    footprint = Footprint(held=300, computed=200, bounded=True, prefixes=PREFIXES)
    ledger.came(1, "op", "1.c", footprint)
    told = report(ledger, 2, first)
    assert (told.running, told.held, told.latency, told.bounded) == (1, 300, 200, 300)
    assert told.came == (("1.c", PREFIXES),)
    assert report(ledger, 1).running == 0
    assert ledger.report(2, told) is None
    ledger.moved(1, "1.c", Residency.RESIDENT, 300)
    ledger.ended(1, "op", is_lost=False)
    after = report(ledger, 2, told)
    assert (after.running, after.held, after.came) == (0, 0, ())
    assert after.moved == (("1.c", Residency.RESIDENT, 300, None),)


def test_a_server_hears_which_tenants_have_strict_calls_elsewhere() -> None:
    """Each tenant once, as long as another server has one of its strict calls. The tenant of a
    server without keys has the empty name."""
    ledger = EngineLedger(None)
    ledger.enter(1)
    ledger.enter(2)
    for name, tenant in (("one", "b"), ("two", "b"), ("three", ""), ("four", None)):
        ledger.came(1, name, name, Footprint(held=1, computed=1, bounded=True, strict=tenant))
    ledger.came(2, "own", "own", Footprint(held=1, computed=1, bounded=True, strict="b"))
    assert report(ledger, 2).strict == ("", "b") and report(ledger, 1).strict == ("b",)
    for name in ("one", "three"):
        ledger.ended(1, name, is_lost=False)
    assert report(ledger, 2).strict == ("b",)
    ledger.ended(1, "two", is_lost=False)
    assert report(ledger, 2).strict == ()


def test_a_server_that_comes_later_hears_of_all_that_is_there() -> None:
    """Contexts that were dropped, or whose op was cancelled, are not taken to be there."""
    ledger = EngineLedger(None)
    ledger.enter(1)
    for name in ("kept", "dropped", "cancelled"):
        ledger.came(1, name, f"1.{name}", Footprint(held=1, computed=1, prefixes=PREFIXES))
    ledger.moved(1, "1.kept", Residency.RESIDENT, 128)
    ledger.moved(1, "1.dropped", Residency.DROPPED, 0)
    ledger.ended(1, "cancelled", is_lost=True)
    ledger.enter(2)
    found = report(ledger, 2)
    assert dict(found.came) == {"1.kept": PREFIXES, "1.cancelled": PREFIXES}
    assert {context: tokens for context, _, tokens, _ in found.moved} == {
        "1.kept": 128,
        "1.cancelled": 0,
    }
    assert found.running == 2 and found.room is None
    ledger.leave(1)
    assert report(ledger, 2, found).running == 0
