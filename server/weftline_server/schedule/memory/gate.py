"""The gate to each model's KV cache: which applications wait for room, and which are admitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weftline_engine.api import Usage
from weftline_server.schedule.memory.admission import Admission, ModelPool, admit
from weftline_server.schedule.memory.admission_line import AdmissionLine
from weftline_server.schedule.memory.applications import Application
from weftline_server.schedule.memory.constants import FEWEST_TIMED
from weftline_server.schedule.memory.habits import mean
from weftline_server.schedule.memory.pool_use import PoolUse


class Gate:
    """Admits applications as a whole, for each model on its own."""

    def __init__(self) -> None:
        self.line = AdmissionLine()
        self._moved: set[str] = set()  # those that began or ceased to wait
        self._admitted: dict[str, Application] = {}
        self._evicted: set[str] = set()  # those that have not come back
        self._entered: set[str] = set()  # those that have not ended a call since
        self._computing: set[str] = set()  # of those, the ones whose contexts are not computed yet
        self._rested: dict[str, Application] = {}  # dormant, and nobody will tell their end
        self._uses: dict[str, PoolUse] = {}

    def may_start(self, application: str) -> bool:
        """Return whether the calls of an application may go to an engine."""
        return application not in self.line

    def moved(self) -> set[str]:
        """The applications that have begun or ceased to wait since this was asked last."""
        moved, self._moved = self._moved, set()
        return moved

    def is_admitted(self, application: str) -> bool:
        return application in self._admitted

    def is_evicted(self, application: str) -> bool:
        """Return whether an application was evicted, and has not sent a call since."""
        return application in self._evicted

    @property
    def counts(self) -> tuple[int, int]:
        """How many applications are admitted, and how many wait for that."""
        return len(self._admitted), len(self.line)

    def arrive(self, application: Application, placed: bool = False) -> bool:
        """Hold back the calls of an application until it is admitted. Return whether it is.

        One with a call that is `placed` already holds the room that it needs.
        """
        self._evicted.discard(application.id)
        if placed:
            self._admitted.setdefault(application.id, application)
        else:
            self.line.add(application)
            self._moved.add(application.id)
        return placed

    def _stop_waiting(self, application: str) -> Application | None:
        self._moved.add(application)
        return self.line.remove(application)

    def leave(self, application: str) -> None:
        """Give the room of an application to others."""
        self._admitted.pop(application, None)

    def forget(self, application: str) -> None:
        self._rested.pop(application, None)
        self._stop_waiting(application)
        self._admitted.pop(application, None)
        self._evicted.discard(application)
        self._entered.discard(application)
        self._computing.discard(application)

    def use(self, model: str) -> PoolUse:
        """Return the record of a model's KV cache."""
        return self._uses.setdefault(model, PoolUse())

    def computed(
        self,
        model: str,
        usage: Usage,
        known: int,
        horizon: float,
        application: str = "",
        now: float = 0.0,
        engine: str = "",
    ) -> None:
        """Count an engine's prompt of which `known` tokens had been computed before; see
        Recomputed.add.

        The tokens that an application computes when it enters were lost while the application was
        not admitted, and not in a crowd.
        """
        use = self.use(model)
        self._computing.discard(application)
        again = use.recomputed.add(usage, known, horizon)
        if application in self._entered:
            self._entered.discard(application)
        else:
            use.again += again
        if (tokens := usage.prompt_tokens - usage.cached_tokens) >= FEWEST_TIMED:
            use.fill_s = mean(use.fill_s, (usage.filled - usage.started) / tokens)
            use.fill_cost.add(engine, usage)
        if use.fill_s:
            use.filling.add(tokens * use.fill_s, now)

    def progress(self, engines: Iterable[Mapping[str, int]], writing: Iterable[str] = ()) -> None:
        """Note how many tokens the running calls may still generate, by application, and which
        applications have a call that generates."""
        self._computing.difference_update(writing)
        if not self.line:
            return
        for left in engines:
            for id, tokens in left.items():
                if (one := self._admitted.get(id)) is not None and one.newest.left:
                    one.newest.left = tokens

    def admitted(self, model: str) -> list[Application]:
        """Return the applications that are admitted to the model's KV cache."""
        return [one for one in self._admitted.values() if one.model == model]

    def _release_dormant(self, model: str, now: float) -> list[Application]:
        """Give the rooms of dormant applications to others, and return these applications.

        Of those of which nobody tells the end, some have ended. Their kinds learn their sizes once
        they seem to have ended.
        """
        use = self.use(model)
        fill_s, cost_s = use.fill_s or 0.0, use.fill_cost.seconds or 0.0
        dormant = [
            one
            for one in self.admitted(model)
            if one.is_dormant(now, cost_s if one.newest.end_unknown else fill_s)
        ]
        for one in dormant:
            del self._admitted[one.id]
            if one.newest.end_unknown:
                self._rested[one.id] = one
        for one in list(self._rested.values()):
            if one.idle_since is None:
                del self._rested[one.id]  # it has gone on
            elif one.seems_over(now):
                del self._rested[one.id]
                one.tell_size()
        return dormant

    def admit(self, model: str, pool: int | None, now: float) -> Admission:
        """Admit applications while they fit into the `pool` tokens of the model's engines.

        Applications are also evicted, whether or not any waits, where those admitted have grown
        until they evict each other. A `pool` of None is of unknown size, and admits everything.
        """
        use = self.use(model)
        if not self.line.waits(model) and not use.again:
            return Admission()
        if pool is None:
            while waiting := self.line.first(model):
                for one in waiting:
                    self._stop_waiting(one.id)
            return Admission()
        dormant = self._release_dormant(model, now)
        state = ModelPool(
            tokens=pool,
            recomputed=use.recomputed.share,
            again=use.again,
            busy=use.busy.share,
            filling=use.filling.share(now, use.engines),
            fill_s=use.fill_s or 0.0,
            changed=now - use.changed,
            forced=now - use.forced,
            entering=any(one.id in self._computing for one in self.admitted(model)),
        )
        decided = admit(self.line.first(model), self.admitted(model), state, now)
        for one in decided.enter:
            self._stop_waiting(one.id)
            self._admitted[one.id] = one
            self._entered.add(one.id)
            self._computing.add(one.id)
        for one in decided.out:
            del self._admitted[one.id]
            self._evicted.add(one.id)
        if not decided.crowded:
            use.again = 0
        if decided.beyond or decided.out:
            use.changed = now
        if decided.forced:
            use.forced = now
        # The rooms of those stood empty until now. With this idle time in the mean, 13 agents were
        # admitted beyond the room, beside nine that fitted into it.
        paused = (one for one in dormant if not one.has_likely_ended)
        if decided.enter and any(one.newest.end_unknown for one in paused):
            use.busy.restart(now)
            use.filling.restart(now)
        return decided
