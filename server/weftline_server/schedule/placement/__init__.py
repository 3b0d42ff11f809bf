"""Placement: a pure function from the queue and the engines' loads to what starts where.

There are two policies.

`request` does what an ordinary server does. The order is first come, first served. Each call goes
to the engine that holds the fewest tokens. Applications, groups and prefixes play no part. Every
experiment uses this policy as its control.

`app` is Parrot's Algorithm 1 (section 5.4), with one score in place of its cases.

- Order: the application with the earliest turn goes first, see `schedule.turns`. Within an
  application, the call furthest from the answer goes first.
- Engine: a call goes to the engine where the fewest tokens must be computed before it ends, and
  where it slows others least. Tokens of a prefix that is already there cost nothing. A token of a
  missing prefix costs more than a token of load. This brings calls that share a prefix together,
  also when all of them are still in the queue. Members of a task group attract each other. Calls
  that a reader waits for keep away from throughput calls and from groups. Throughput calls gather,
  and while users' calls run an engine is kept free of throughput calls and groups.
- Waiting: when the best engine has the prefix but no room, the call waits for it. On another engine
  the prefix would be computed again. It would also evict prefixes that other calls come back to,
  and then these calls would move to other engines, too. When a call has waited for PATIENCE_S and
  fits nowhere, one engine takes no smaller ones until it fits.

Tenants share engines: under both policies the calls of a tenant keep this order among themselves,
and the next call is one of the tenant that has got the least work so far.

An engine takes only the kinds of op that it announces.
"""

from __future__ import annotations
