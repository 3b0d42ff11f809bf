"""Which messages a chat template writes, found by probes, and how the others are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from weftline.contract.tools import CalledFunction, ToolCall
from weftline_server.prompt.render import RenderedMessage

Turns = tuple[RenderedMessage, ...]
Shows = Callable[[Turns], bool]

SYSTEM, DEVELOPER = "system", "developer"
GUIDES = (SYSTEM, DEVELOPER)  # roles that say how to answer
_MARK = "\ue000"  # begins a text of a probe. No template has it.
_CALL = ToolCall(id="123456789", function=CalledFunction(name="probe"))


class CallText(Enum):
    """What becomes of an assistant's text beside its calls."""

    KEPT = auto()  # the template writes it
    APART = auto()  # it is a message of its own
    LATE = auto()  # the same, where the template lets one follow; else it begins the answer


@dataclass(frozen=True, slots=True)
class TemplateRoles:
    """The messages that a chat template writes.

    `first` are the roles of GUIDES that it writes as the first message, and `later` those that it
    writes behind other messages. `alone` says that it writes a system message without a user's.
    """

    first: frozenset[str]
    later: frozenset[str]
    alone: bool
    beside_calls: CallText

    def place(self, turns: Sequence[RenderedMessage]) -> Turns:
        """Return `turns` as messages that the template writes.

        A developer's message that it does not know is a system message. One that it does not write
        at its place ends the first system message, or begins the user's.
        """
        if self.beside_calls is not CallText.KEPT and any(
            turn.tool_calls and turn.content for turn in turns
        ):
            turns = _apart(turns, self.beside_calls)
        if not any(turn.role in GUIDES for turn in turns):
            return tuple(turns)
        placed: list[RenderedMessage] = []
        moved: list[str] = []
        for turn in turns:
            role = turn.role if turn.role not in GUIDES else self._role(turn.role, not placed)
            if role is None:
                moved.append(turn.content)
            else:
                placed.append(turn if role == turn.role else replace(turn, role=role))
        if not self.alone and not any(turn.role == "user" for turn in placed):
            moved = [turn.content for turn in placed if turn.role in GUIDES] + moved
            placed = [turn for turn in placed if turn.role not in GUIDES]
            return (RenderedMessage("user", "\n\n".join(moved)), *placed)
        return self._with_moved(placed, moved)

    def _role(self, role: str, is_first: bool) -> str | None:
        """The role under which the template writes a message at this place; None for none."""
        known = self.first if is_first else self.later
        return next((one for one in (role, SYSTEM) if one in known), None)

    def _with_moved(self, placed: list[RenderedMessage], moved: list[str]) -> Turns:
        if not moved:
            return tuple(placed)
        if placed and placed[0].role in GUIDES:
            head, *rest = placed
            return (replace(head, content="\n\n".join([head.content, *moved])), *rest)
        if SYSTEM in self.first:
            return (RenderedMessage(SYSTEM, "\n\n".join(moved)), *placed)
        for index, turn in enumerate(placed):
            if turn.role == "user":
                placed[index] = replace(turn, content="\n\n".join([*moved, turn.content]))
                return tuple(placed)
        return (RenderedMessage("user", "\n\n".join(moved)), *placed)


# A template that refuses a conversation of one message is asked nothing.
EVERYTHING = TemplateRoles(frozenset(GUIDES), frozenset(GUIDES), True, CallText.KEPT)


def probed(ways: Sequence[Shows], names_developer: bool) -> TemplateRoles:
    """Return what a template writes in all of the `ways` in which it renders a user's message.

    Each way renders a conversation and tells whether all of its texts are in the prompt. A
    developer's role is known only where the template names it: many write any role into the same
    mark, and their models have never seen this one.
    """
    ways = [one for one in ways if one(_talk("user"))]
    if not ways:
        return EVERYTHING

    def shows(turns: Turns) -> bool:
        return all(one(turns) for one in ways)

    roles = GUIDES if names_developer else (SYSTEM,)
    first = frozenset(one for one in roles if shows(_talk(one, "user")))
    heads = ((), (SYSTEM,)) if SYSTEM in first else ((),)
    later = frozenset(
        one for one in roles if all(shows(_talk(*places)) for places in _behind(one, heads))
    )
    return TemplateRoles(first, later, ways[0](_talk(SYSTEM)), _beside_calls(shows))


def _behind(role: str, heads: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Conversations with a message of `role` behind another one."""
    for head in heads:
        yield (*head, "user", "assistant", role, "user")
        yield (*head, "user", role)
        if head:
            yield (*head, role, "user")


def _beside_calls(shows: Shows) -> CallText:
    user, assistant, tool, answer, again = _talk("user", "assistant", "tool", "assistant", "user")
    calls = replace(assistant, tool_calls=(_CALL,))
    tool = replace(tool, tool_call_id=_CALL.id)
    whole = (user, calls, tool, answer, again)
    if shows(whole):
        return CallText.KEPT
    if shows(_apart(whole, CallText.APART)):
        return CallText.APART
    late = shows(_apart(whole, CallText.LATE)) and shows(_apart(whole[:3], CallText.LATE))
    return CallText.LATE if late else CallText.KEPT


def _talk(*roles: str) -> Turns:
    return tuple(RenderedMessage(one, f"{_MARK}{index}.") for index, one in enumerate(roles))


def _apart(turns: Sequence[RenderedMessage], how: CallText) -> Turns:
    """Return `turns` with the texts beside calls in messages of their own.

    Mistral's templates take one message of the assistant between two of the user, besides those
    with calls. There a text stands before the first calls as long as no answer follows, or else it
    begins the answer.
    """
    made: list[RenderedMessage] = []
    held: list[str] = []  # texts of this turn of the assistant that wait for its answer
    begun = 0  # where this turn of the assistant begins

    def settle() -> None:
        if held:
            made.insert(begun, RenderedMessage("assistant", "\n\n".join(held)))
            held.clear()

    for turn in turns:
        if turn.tool_calls and turn.content:
            text, turn = turn.content, replace(turn, content="")
            if how is CallText.APART:
                made.append(RenderedMessage("assistant", text))
            else:
                held.append(text)
        elif turn.role == "assistant" and not turn.tool_calls and held:
            turn = replace(turn, content="\n\n".join([*held, turn.content]))
            held.clear()
        elif turn.role not in ("assistant", "tool"):
            settle()
            begun = len(made) + 1
        made.append(turn)
    settle()
    return tuple(made)
