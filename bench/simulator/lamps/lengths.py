"""How exactly the server's predictor of output lengths tells those of a trace, class by class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weftline_server.schedule.memory.lengths import Lengths

from .trace import MOST_TOKENS, Agent


@dataclass(frozen=True, slots=True)
class Exactness:
    """The share of the predictions that are within 5 and 15 tokens of the truth, as LAMPS counts
    them, and their mean error in tokens."""

    count: int
    acc_5: float
    acc_15: float
    mean_error: float


def exactness(agents: Iterable[Agent]) -> Exactness:
    """Foretell each output by those of its class that came before it, and then learn from it.

    Outputs before the first prediction do not count.
    """
    lengths, errors = Lengths(), list[int]()
    for agent in agents:
        for turn in agent.turns:
            told = lengths.expect("trace", agent.kind, MOST_TOKENS)
            if told is not None:
                errors.append(abs(told.mean - turn.output))
            lengths.learn("trace", agent.kind, turn.output)
    count = max(1, len(errors))
    return Exactness(
        count=len(errors),
        acc_5=sum(one <= 5 for one in errors) / count,
        acc_15=sum(one <= 15 for one in errors) / count,
        mean_error=sum(errors) / count,
    )
