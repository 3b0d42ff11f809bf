"""Messages whose role or place a chat template does not know: no text is left out of the prompt."""

from __future__ import annotations

import pytest

from tests.null.test_dialects import DIALECTS, prompter_of
from weftline.contract.errors import InvalidRequest
from weftline.contract.tools import CalledFunction, Function, Tool, ToolCall
from weftline_engine.api import Description
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.render import PromptBefore, RenderedMessage

_LINE = "{{ m.role }}: {{ m.content }}\n"
_EACH = "{% for m in messages %}"
_KNOWN = "{% if m.role in ('system', 'user', 'assistant') %}"
_RAISE = "{{ raise_exception('no') }}"
# What the templates of these families do with the roles of a conversation.
ANY_ROLE = _EACH + _LINE + "{% endfor %}"
QWEN3 = _EACH + _KNOWN + _LINE + "{% endif %}{% endfor %}"
QWEN35 = (
    _EACH + "{% if m.role == 'system' and not loop.first or m.role == 'developer' %}" + _RAISE
    + "{% endif %}" + _LINE + "{% endfor %}{% if 'user' not in messages | map(attribute='role') %}"
    + _RAISE + "{% endif %}"
)  # fmt: skip
R1 = (
    "{% set ns = namespace(s='') %}" + _EACH
    + "{% if m.role == 'system' %}{% set ns.s = m.content %}{% endif %}{% endfor %}"
    + "system: {{ ns.s }}\n" + _EACH
    + "{% if m.role in ('user', 'assistant') %}" + _LINE + "{% endif %}{% endfor %}"
)  # fmt: skip
GEMMA = (
    _EACH + "{% if m.role not in ('user', 'assistant') %}" + _RAISE + "{% endif %}" + _LINE
    + "{% endfor %}"
)  # fmt: skip
GPT_OSS = (
    "{% if messages[0].role in ('developer', 'system') %}developer: {{ messages[0].content }}\n"
    "{% endif %}" + _EACH + "{% if m.role in ('user', 'assistant') %}" + _LINE
    + "{% endif %}{% endfor %}"
)  # fmt: skip
TEMPLATES = {
    "any role": ANY_ROLE, "Qwen3": QWEN3, "Qwen3.5": QWEN35, "R1": R1, "Gemma": GEMMA,
    "gpt-oss": GPT_OSS,
}  # fmt: skip

U, A, S, D, V = (
    RenderedMessage("user", "Is it warm?"),
    RenderedMessage("assistant", "It is."),
    RenderedMessage("system", "Be brief."),
    RenderedMessage("developer", "Say degrees."),
    RenderedMessage("user", "Still?"),
)
TALKS = {
    "developer first": (D, U),
    "behind the system's": (S, D, U),
    "in the middle": (S, U, A, D, V),
    "in the middle alone": (U, A, D, V),
    "at the end": (S, U, A, V, D),
    "system twice": (S, U, A, RenderedMessage("system", "Say degrees."), V),
    "no user": (D,),
}


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("template", [*TEMPLATES, *DIALECTS])
def test_all_texts_are_in_the_prompt(template: str, talk: str) -> None:
    """A guide stands where the template writes one, under a role that it knows."""
    source = TEMPLATES.get(template) or DIALECTS[template][0]
    text = prompter_of(source).text(PromptBefore("", TALKS[talk]))
    assert all(text.count(turn.content) == 1 for turn in TALKS[talk])
    assert "developer: " not in text or template == "gpt-oss"


@pytest.mark.parametrize(
    ("template", "talk", "text"),
    [
        ("any role", "in the middle", "system: Be brief.\n{}system: Say degrees.\nuser: Still?\n"),
        ("Qwen3", "in the middle", "system: Be brief.\n{}system: Say degrees.\nuser: Still?\n"),
        ("Qwen3.5", "in the middle", "system: Be brief.\n\nSay degrees.\n{}user: Still?\n"),
        ("Qwen3.5", "in the middle alone", "system: Say degrees.\n{}user: Still?\n"),
        ("Qwen3.5", "no user", "user: Say degrees.\n"),
        ("R1", "behind the system's", "system: Be brief.\n\nSay degrees.\nuser: Is it warm?\n"),
        ("gpt-oss", "developer first", "developer: Say degrees.\nuser: Is it warm?\n"),
        ("gpt-oss", "at the end", "developer: Be brief.\n\nSay degrees.\n{}user: Still?\n"),
    ],
)
def test_a_guide_has_the_place_that_its_template_knows(template: str, talk: str, text: str) -> None:
    """It stays in the middle, ends the first system message, or begins the conversation."""
    between = "user: Is it warm?\nassistant: It is.\n"
    made = prompter_of(TEMPLATES[template]).text(PromptBefore("", TALKS[talk]))
    assert made == text.replace("{}", between)


def test_a_guide_begins_the_users_message_where_a_template_knows_no_system() -> None:
    """Also one in the middle."""
    made = prompter_of(GEMMA).text(PromptBefore("", TALKS["in the middle"]))
    first = "user: Be brief.\n\nSay degrees.\n\nIs it warm?\n"
    assert made == f"{first}assistant: It is.\nuser: Still?\n"


def test_tools_in_words_join_a_developers_message() -> None:
    """The head of the conversation is one message, whichever role it came with."""
    tool = Tool(function=Function(name="weather", description="The weather.", parameters={}))
    made = prompter_of(QWEN3).text(PromptBefore("", (D, U), (tool,)))
    assert made.startswith("system: Say degrees.\n\nYou can call functions.")
    assert made.count("system: ") == 1


CALL = ToolCall(id="123456789", function=CalledFunction(name="weather"))
CALLS = (
    U,
    RenderedMessage("assistant", "I look.", tool_calls=(CALL,)),
    RenderedMessage("tool", "18 degrees", tool_call_id="123456789"),
)
_CALLS = "{% if m.tool_calls %}[{{ m.tool_calls[0].function.name }}]\n{% else %}"
LLAMA = "{{ tools }}" + _EACH + _CALLS + _LINE + "{% endif %}{% endfor %}"
_ALTERNATE = (
    "{% set ns = namespace(n=0) %}" + _EACH
    + "{% if m.role in ('user', 'assistant') and not m.tool_calls %}"
    + "{% if (m.role == 'user') != (ns.n % 2 == 0) %}" + _RAISE
    + "{% endif %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
)  # fmt: skip
AGAIN = (
    RenderedMessage("assistant", "I look again.", tool_calls=(CALL,)),
    RenderedMessage("tool", "19 degrees", tool_call_id="123456789"),
)
NOW = "[weather]\ntool: 18 degrees\n"
LATER = "[weather]\ntool: 19 degrees\n"


@pytest.mark.parametrize(
    ("template", "turns", "text"),
    [
        (LLAMA, CALLS, f"assistant: I look.\n{NOW}"),
        (LLAMA, (*CALLS, A, V), f"assistant: I look.\n{NOW}assistant: It is.\nuser: Still?\n"),
        (_ALTERNATE + LLAMA, CALLS, f"assistant: I look.\n{NOW}"),
        (
            _ALTERNATE + LLAMA,
            (*CALLS, *AGAIN),
            f"assistant: I look.\n\nI look again.\n{NOW}{LATER}",
        ),
        (
            _ALTERNATE + LLAMA,
            (*CALLS, *AGAIN, A, V),
            f"{NOW}{LATER}assistant: I look.\n\nI look again.\n\nIt is.\nuser: Still?\n",
        ),
    ],
    ids=["Llama", "Llama, answered", "Mistral", "Mistral, twice", "Mistral, answered"],
)
def test_a_text_beside_calls_is_in_the_prompt(
    template: str, turns: tuple[RenderedMessage, ...], text: str
) -> None:
    """Llama's and Mistral's templates write the calls alone. The text is a message of its own."""
    made = prompter_of(template).text(PromptBefore("", turns))
    assert made.removeprefix("None") == f"user: Is it warm?\n{text}"


def test_a_refusal_stays_one() -> None:
    """A template may refuse a conversation for what it is, and nothing is left out for it."""
    with pytest.raises(InvalidRequest, match="refuses these messages: no"):
        prompter_of(_ALTERNATE + LLAMA).text(PromptBefore("", (U, V)))


def test_an_endpoint_gets_a_developers_message_as_a_systems() -> None:
    """What its chat template knows cannot be tried from here."""
    elsewhere = Description(model="m", tokenizer=None, chat_template=None, takes_messages=True)
    payload = Prompter(elsewhere).payload(PromptBefore("", (D, U)))
    assert payload.chat is not None and payload.chat.messages == (
        {"role": "system", "content": "Say degrees."},
        {"role": "user", "content": "Is it warm?"},
    )
