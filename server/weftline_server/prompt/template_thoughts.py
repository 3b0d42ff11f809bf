"""Where a chat template writes the thoughts of an earlier answer, found by probes."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from weftline.contract.tools import CalledFunction, ToolCall
from weftline_server.prompt.render import RenderedMessage

Marks = tuple[str, str]  # what opens and closes a block of thoughts in a text


class ThoughtForm(Enum):
    """How a message tells its thoughts to a template. The first four are names of a field."""

    REASONING_CONTENT = "reasoning_content"
    REASONING = "reasoning"
    THINKING = "thinking"
    THOUGHT = "thought"
    PARTS = "a part of the content before its text"
    TEXT = "a block before the text, as the model wrote it"
    NONE = "the template writes none"


_MARK = "\ue000T."  # the thoughts of a probe. No template has it.
_DUMPED = ('"thinking"', "'thinking'")  # a template may write parts that it cannot read as data
_CALL = ToolCall(id="123456789", function=CalledFunction(name="probe"))
_USER = RenderedMessage("user", "u")
# Behind the last message of the user, where most templates write thoughts, and before one.
_PROBES = (
    (
        _USER,
        RenderedMessage("assistant", "", tool_calls=(_CALL,), thoughts=_MARK),
        RenderedMessage("tool", "r", tool_call_id=_CALL.id),
    ),
    (_USER, RenderedMessage("assistant", "a", thoughts=_MARK), _USER),
)
# The switches of templates that write thoughts only where the model is to think, or to keep them.
PRESERVE = "preserve_thinking"
PROBE_WORDS = dict.fromkeys(("enable_thinking", "thinking", PRESERVE, "add_thoughts"), True)


def probed_form(
    render: Callable[[ThoughtForm, tuple[RenderedMessage, ...]], str], marks: Marks | None
) -> ThoughtForm:
    """The first form in which a template writes thoughts once. `render` returns "" where the
    template refuses. A model without `marks` of its own has no thoughts in its texts."""
    for turns in _PROBES:
        for form in ThoughtForm:
            if form is ThoughtForm.TEXT and marks is None:
                continue
            text = "" if form is ThoughtForm.NONE else render(form, turns)
            if text.count(_MARK) == 1 and not any(name in text for name in _DUMPED):
                return form
    return ThoughtForm.NONE


def write_thoughts(
    message: dict[str, Any], thoughts: str, form: ThoughtForm, marks: Marks | None
) -> None:
    """Add the thoughts to a message for the template."""
    match form:
        case ThoughtForm.NONE:
            return
        case ThoughtForm.PARTS:
            said = [{"type": "text", "text": message["content"]}] if message["content"] else []
            message["content"] = [{"type": "thinking", "thinking": thoughts}, *said]
        case ThoughtForm.TEXT:
            assert marks is not None, "this form was found with marks"
            message["content"] = f"{marks[0]}{thoughts}{marks[1]}{message['content']}"
        case _:
            message[form.value] = thoughts
