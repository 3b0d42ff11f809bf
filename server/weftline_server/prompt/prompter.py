"""Renders prompts by a model's chat template and tokenises them, as its engine announced both.

The whole rendered text is tokenised at once, never piece by piece. The template comes from the
model's publisher and runs in Jinja's immutable sandbox. Nothing from a request is ever compiled.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weftline.contract.calls import EFFORT, TemplateWord
from weftline.contract.errors import ContextTooLong, InvalidRequest
from weftline.contract.tools import Function, Tool, ToolCall
from weftline_engine.api import WORDS, Chat, Description, SamplingParams, too_long
from weftline_engine.api.record import short_record
from weftline_server.prompt.answer_dialect import dialect_of
from weftline_server.prompt.chat import (
    complete,
    for_endpoint,
    for_template,
    in_words,
    with_calls_in_text,
    write_calls,
)
from weftline_server.prompt.memo import Memo
from weftline_server.prompt.prompt_borders import borders
from weftline_server.prompt.render import PromptBefore, RenderedMessage
from weftline_server.prompt.template_roles import EVERYTHING, probed
from weftline_server.prompt.template_thoughts import (
    PRESERVE,
    PROBE_WORDS,
    Marks,
    ThoughtForm,
    probed_form,
)
from weftline_server.prompt.thinking_block import CLOSE_BLOCK, OPEN_BLOCK, Thinking
from weftline_server.prompt.tokenizer_files import tokenizer_of
from weftline_server.prompt.tool_format import format_of
from weftline_server.prompt.words import WordEncoding, WordTokenizer

# Jinja and tokenizers are imported where they are used. The session names types of this module, and
# it must run where neither is installed.
if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Encoding, Tokenizer

# A shorter text is encoded in 5 ms, and a batch costs 0.1 ms more.
SHORT_CHARS = 4096
# Characters after which the ids before them are taken as final. No special token of a published
# chat model is longer. For a longer word, the final comparison of ids finds the difference.
UNSTABLE_CHARS = 32
# Beginnings of prompts whose ids are kept. Calls that read one variable ask for it in one moment.
MOST_STABLE = 8
MOST_TOKENS = 1 << 31  # a tokenizer cannot be asked for a higher id
MOST_REASON = 300  # characters of what Jinja says of a template
MOST_SWITCHES = 64  # sets of chat_template_kwargs whose prompts' ends are known
BEGINNING = "\ue000"  # stands for a first message
_TEXT = {"type": "string", "description": "text"}
_PROBE = Function(
    name="probe",
    description="A probe.",
    parameters={"type": "object", "properties": {"text": _TEXT}, "required": ["text"]},
)
_PROBE_TOOLS = (Tool(function=_PROBE),)
_BARE = (Tool(function=Function(name="probe", parameters={"type": "object"})),)


@short_record
class Payload:
    """The content of an op: token ids, or text or a chat for an engine without a tokenizer.

    An op without a prompt carries JSON values as `inputs`. `borders` are those of `Guesses`.
    """

    tokens: tuple[int, ...] | None
    text: str | None
    chat: Chat | None = field(default=None, hash=False)
    inputs: Mapping[str, object] = field(default_factory=dict, hash=False)
    borders: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The length in tokens; for text it is estimated at four characters a token."""
        if self.tokens is not None:
            return len(self.tokens)
        texts = (self.text or "",) if self.chat is None else self.chat.texts
        return sum(map(len, texts)) // 4 + 1


class Prompter:
    """Renders and tokenises prompts for one model. Any thread may use it."""

    def __init__(self, description: Description) -> None:
        self.description = description
        path, template = description.tokenizer, description.chat_template
        self.tokenizer = None if path is None else _load_tokenizer(path)
        self._template = None if template is None else _compiled(template, description.model)
        self._alphabet = None
        self.special: frozenset[int] = frozenset()
        self._fences: frozenset[int] = frozenset()  # tokens that end the words beside them
        self._added: tuple[str, ...] = ()  # their texts
        self._stands: dict[int, bool] = {}  # of the tokens that were asked for: see `_is_final`
        if path and not isinstance(self.tokenizer, WordTokenizer | None):
            added = self.tokenizer.get_added_tokens_decoder()
            self.special = frozenset(id for id, token in added.items() if token.special)
            self._fences = frozenset(added)
            self._added = tuple(token.content for token in added.values() if token.content)
            if b'"ByteLevel"' in Path(path).read_bytes():
                self._alphabet = _byte_alphabet()
        self.dialect = dialect_of(template)
        self.tool_format = format_of(template if self.dialect is None else None)
        self._knows_tools = template is not None and _names(template, "tools")
        self._completes_tools = False
        self._writes_calls = template is not None and "tool_calls" in template
        self.fingerprint = _fingerprint(description)
        self._roles = EVERYTHING  # until it is known better
        self.marks = self._special_marks()
        begins = self.dialect is not None and self.dialect.thinks
        # LFM2.5's template names the mark that closes a block alone, to cut earlier blocks off.
        self.has_blocks = any(mark in (template or "") for mark in (OPEN_BLOCK, CLOSE_BLOCK))
        # An endpoint may.
        self._thinks = begins or self.has_blocks or description.takes_messages
        self._thinking: Memo[Thinking] = Memo(MOST_SWITCHES)
        self._block: Marks | None = (f"{OPEN_BLOCK}\n", f"\n{CLOSE_BLOCK}\n\n")
        if self.dialect is not None and self.dialect.block is not None:
            self._block = self.dialect.block
        elif not self.has_blocks:
            self._block = None
        self.thought_form = ThoughtForm.NONE
        self._stable: Memo[tuple[int, ...]] = Memo(MOST_STABLE)
        # How to decode an output without tools whose client wishes nothing: most are such.
        self.without_wishes: Memo[SamplingParams] = Memo(1)
        if self._template is not None and not description.takes_messages:
            self._completes_tools = self._knows_tools and self._refuses_bare_tools()
            offers = ((), _PROBE_TOOLS) if self._knows_tools else ((),)
            ways = [partial(self._shows, tools) for tools in offers]
            self._roles = probed(ways, template is not None and "developer" in template)
            self.thought_form = probed_form(self._with_thoughts, self._block)
        self.begins = self._beginning()  # characters before the first message, all of the template

    def _special_marks(self) -> dict[int, str]:
        """The ids of the dialect's marks that engines leave out of their texts."""
        if self.dialect is None or self.tokenizer is None:
            return {}
        ids = {self.tokenizer.token_to_id(mark): mark for mark in self.dialect.marks}
        return {id: mark for id, mark in ids.items() if id in self.special}

    def payload(self, prompt: PromptBefore) -> Payload:
        """Return the op's payload for `prompt`.

        Raises ContextTooLong, and InvalidRequest if it is empty or the template refuses it.
        """
        payload = self.tokenised(prompt)
        limit, size = self.description.context_limit, payload.size
        if size >= limit:
            raise ContextTooLong(too_long(size, limit), param="prompt")
        if size == 0:
            raise InvalidRequest("the prompt before an output is empty: add text", param="prompt")
        return payload

    def tokenised(self, prompt: PromptBefore, *, special: bool = True) -> Payload:
        """Return `prompt` as tokens, of whatever number. A text has the tokenizer's special tokens
        if `special`. Raises InvalidRequest if the template refuses the messages."""
        if self.description.takes_messages and prompt.messages is not None:
            if prompt.words.keys() - {EFFORT}:
                raise InvalidRequest(
                    f"chat_template_kwargs are not served by model {self.description.model}, whose "
                    "chat template runs elsewhere: leave them out",
                    param="chat_template_kwargs",
                )
            if prompt.begun:
                raise InvalidRequest(
                    f"model {self.description.model} cannot continue a message, because its chat "
                    "template runs elsewhere: end the messages with the user's",
                    param="continue_final_message",
                )
            return Payload(None, None, for_endpoint(prompt.messages, prompt.offer))
        if self.tokenizer is None:
            return Payload(None, self.text(prompt))
        if prompt.tokens:
            self._check(prompt.tokens, "tokens")
            return Payload(prompt.tokens, None)
        text = self.text(prompt)
        # A chat template writes its own special tokens. Plain text gets the tokenizer's (BOS).
        plain = special and prompt.messages is None
        encoding = self._encode(text, plain)
        begin = self.tokenizer.token_to_id(self.description.bos_token)
        if not encoding.ids and begin is not None and special:
            return Payload((begin,), None)  # an output at the very start needs a token to follow
        found: tuple[int, ...] = ()
        if self.description.wants_borders:
            found = borders(prompt, text, encoding.offsets)
        return Payload(tuple(encoding.ids), None, borders=found)

    def decoded(self, tokens: Sequence[int], param: str) -> str:
        """Return the text of ids that a client sent, with special tokens in words. Raises
        InvalidRequest, which names `param`, for an id that is none."""
        if self.tokenizer is None:
            raise InvalidRequest(
                f"the engine of model {self.description.model!r} keeps its tokenizer to itself: "
                "send a text",
                param=param,
            )
        self._check(tokens, param)
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def _check(self, tokens: Sequence[int], param: str) -> None:
        assert self.tokenizer is not None
        for id in {min(tokens, default=0), max(tokens, default=0)}:
            if not 0 <= id < MOST_TOKENS or self.tokenizer.id_to_token(id) is None:
                raise InvalidRequest(
                    f"{param} has {id}, which is no token of model {self.description.model!r}",
                    param=param,
                )

    def token_name(self, id: int) -> str:
        """Return a token as its tokenizer spells it."""
        return (self.tokenizer.id_to_token(id) if self.tokenizer is not None else None) or ""

    def count(self, text: str) -> int:
        """Return how many tokens a piece of an answer is, 0 where that is not known."""
        return 0 if self.tokenizer is None else len(self._encode(text, False).ids)

    def thinking(self, words: Mapping[str, TemplateWord]) -> Thinking:
        """How answers think to prompts with these words for the template."""
        if not self._thinks:
            return Thinking.NONE
        return self._thinking.get(repr(sorted(words.items())), lambda: self._ending(words))

    def _ending(self, words: Mapping[str, TemplateWord]) -> Thinking:
        try:
            text = self.text(PromptBefore("", (RenderedMessage("user", BEGINNING),), words=words))
        except InvalidRequest:
            return Thinking.MARKED  # the template refuses a conversation of one message
        return Thinking.OPEN if text.rstrip().endswith(OPEN_BLOCK) else Thinking.MARKED

    def _encode(self, text: str, special: bool) -> Encoding | WordEncoding:
        """`text` as tokens. `encode_batch` lets other threads run, which `encode` does not."""
        assert self.tokenizer is not None
        if len(text) <= SHORT_CHARS:
            return self.tokenizer.encode(text, add_special_tokens=special)
        return self.tokenizer.encode_batch([text], add_special_tokens=special)[0]

    def token(self, id: int) -> tuple[str, bytes]:
        """Return a token as text and as bytes. Its bytes may be only a part of a character's."""
        if self.tokenizer is None:
            return str(id), b""
        name = self.tokenizer.id_to_token(id) or ""
        if self._alphabet is not None and all(char in self._alphabet for char in name):
            data = bytes(self._alphabet[char] for char in name)
        elif match := _BYTE.fullmatch(name):
            data = bytes([int(match.group(1), 16)])
        else:
            data = name.replace("\u2581", " ").encode()
        return data.decode(errors="replace"), data

    def stable_prefix(self, prompt: PromptBefore, hole: str, session: str = "") -> tuple[int, ...]:
        """Return the ids before `hole` that no text after it can change; () if there are none.

        Without a hole all is known, as of a call that waits for a branch: then all ids but the
        last, which the call itself needs.

        Prompts of a session that begin alike are tokenised once. Sessions share nothing here,
        because its time would tell one tenant about another's texts.
        """
        if self.tokenizer is None:
            return ()
        if prompt.tokens:
            return prompt.tokens[:-1]
        known, found, _ = self.text(prompt).partition(hole)
        plain = prompt.messages is None
        if not found:
            return tuple(self._encode(known, plain).ids[:-1])
        return self._stable.get((session, plain, known), lambda: self._stable_ids(known, plain))

    def _stable_ids(self, known: str, plain: bool) -> tuple[int, ...]:
        """The ids of `known` that are final.

        A tokenizer works on words and added tokens. So the ids up to an added token are final, and
        those up to the start of a word once UNSTABLE_CHARS more characters are known. The caller
        must still compare them with the ids of the whole prompt.
        """
        encoding, fences = self._encode(known, plain), self._fences
        ids = encoding.ids
        last = len(known) - UNSTABLE_CHARS
        for index in range(len(ids), 0, -1):
            if ids[index - 1] in fences and self._is_final(ids[index - 1]):
                return tuple(ids[:index])
            if index == len(ids):
                continue
            start = encoding.offsets[index][0]
            if not 0 < start <= last:
                continue
            beside = known[start - 1 : start + 1]
            if any(map(str.isspace, beside)) or not fences.isdisjoint(ids[index - 1 : index + 1]):
                return tuple(ids[:index])
        return ()

    def _is_final(self, id: int) -> bool:
        """Whether no text behind this added token can be a part of it: no other added token has it
        as a part, or begins with its end."""
        if id not in self._stands:
            name = self.token_name(id)
            ends = [name[at:] for at in range(1, len(name))]
            others = [one for one in self._added if one != name]
            self._stands[id] = not any(
                name in one or any(map(one.startswith, ends)) for one in others
            )
        return self._stands[id]

    def _beginning(self) -> int:
        """The characters that the chat template writes before a user's first message.

        Some templates write a whole system message of their own.
        """
        if self._template is None or self.description.takes_messages:
            return 0
        try:
            text = self.text(PromptBefore("", (RenderedMessage("user", BEGINNING),)))
        except InvalidRequest:
            return 0  # the template refuses a conversation of one message
        return max(0, text.find(BEGINNING))

    def _refuses_bare_tools(self) -> bool:
        """Whether the template takes a tool only with all of its parts, as that of gpt-oss does."""
        asked = (RenderedMessage("user", BEGINNING),)
        self._completes_tools = False
        if self._shows(_BARE, asked):
            return False
        self._completes_tools = True
        return self._shows(_BARE, asked)

    def _shows(self, tools: tuple[Tool, ...], turns: tuple[RenderedMessage, ...]) -> bool:
        """Whether all texts of a probe stand in its prompt."""
        try:
            text = self.text(PromptBefore("", turns, tools))
        except InvalidRequest:
            return False
        return all(turn.content in text for turn in turns)

    def _with_thoughts(self, form: ThoughtForm, turns: tuple[RenderedMessage, ...]) -> str:
        """A probe with its thoughts in this form; "" if the template refuses it."""
        self.thought_form = form
        try:
            return self.text(PromptBefore("", turns, _PROBE_TOOLS, PROBE_WORDS))
        except InvalidRequest:
            return ""

    def _write_calls(self, calls: Sequence[ToolCall]) -> str:
        """Calls of an earlier message as text, for a template that writes none."""
        if self.dialect is not None and self.dialect.write is not None:
            return self.dialect.write(calls)
        return write_calls(self.tool_format, calls)

    def text(self, prompt: PromptBefore) -> str:
        """Return the whole rendered text. Raises InvalidRequest if the template refuses it."""
        if prompt.messages is None:
            return prompt.text
        if self._template is None:
            raise InvalidRequest(
                f"model {self.description.model} has no chat template: send a text prompt",
                param="prompt",
            )
        from jinja2 import TemplateError

        tools = None
        turns: Sequence[RenderedMessage] = prompt.messages
        if prompt.begun:
            turns = (*turns, RenderedMessage("assistant", prompt.begun))
        if self._knows_tools:
            if not self._writes_calls:
                turns = with_calls_in_text(turns, self._write_calls)
            tools = [tool.to_template() for tool in prompt.tools] or None
            if tools and self._completes_tools:
                tools = list(map(complete, tools))
        else:
            turns = in_words(turns, prompt.tools)
        placed = self._roles.place(turns)
        keeps = prompt.words.get(PRESERVE) is True
        messages = for_template(placed, self.tool_format, self.thought_form, self._block, keeps)
        try:
            text = self._template.render(
                _words(prompt.words),
                messages=messages,
                tools=tools,
                add_generation_prompt=not prompt.begun,
                bos_token=self.description.bos_token,
                eos_token=self.description.eos_token,
            )
        # The words of a request may be of another type than the template expects.
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        return _cut(text, prompt.begun) if prompt.begun else text


def _words(words: Mapping[str, TemplateWord]) -> dict[str, TemplateWord]:
    """The words for the template. PRESERVE gets the names that families give it."""
    if (keeps := words.get(PRESERVE)) is None:
        return dict(words)
    kept = dict.fromkeys(("preserved_thinking", "keep_past_thinking"), keeps)
    dropped = dict.fromkeys(
        ("clear_thinking", "drop_thinking", "truncate_history_thinking"), not keeps
    )
    return {**kept, **dropped, **words}


def _cut(text: str, begun: str) -> str:
    """A rendered chat without what its template writes behind the last message, as transformers
    cuts it. Raises InvalidRequest if the template has changed that message."""
    at = text.rfind(begun.strip())
    if at < 0:
        raise InvalidRequest(
            "the model's chat template changes the last message, so it cannot be continued: send "
            "it without thoughts, or without continue_final_message",
            param="continue_final_message",
        )
    kept = begun.lstrip() if text.startswith(begun.lstrip(), at) else begun.strip()
    return text[: at + len(kept)]


def _fingerprint(description: Description) -> str:
    """Return a hash that two engines share exactly if they take the same prompts."""
    path = description.tokenizer
    if path is None or path.startswith(WORDS):
        vocabulary = (path or "").encode()
    else:
        vocabulary = Path(path).read_bytes()
    fields = (
        description.chat_template,
        description.bos_token,
        description.eos_token,
        description.takes_messages,
        path is None,
    )
    return hashlib.sha256(vocabulary + repr(fields).encode()).hexdigest()


_BYTE = re.compile("<0x([0-9A-F]{2})>")  # how SentencePiece spells a byte


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's map of letters to bytes.

    A printable byte is its own letter. The others have letters from U+0100 on.
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(own)]
    return {chr(byte): byte for byte in own} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


def _load_tokenizer(path: str) -> Tokenizer | WordTokenizer:
    if path.startswith(WORDS):
        return WordTokenizer(int(path.removeprefix(WORDS)))
    return tokenizer_of(path)


def _compiled(template: str, model: str) -> Template:
    """Compile a template in Jinja's immutable sandbox, with the names that transformers defines.

    Raises InvalidRequest if it is not Jinja.
    """
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from weftline_server.prompt.jinja_tags import Generation

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except (TemplateError, RecursionError) as error:
        reason = " ".join(str(error).split())[:MOST_REASON]
        raise InvalidRequest(
            f"the chat template of model {model} cannot be read: {reason} Fetch the model again",
            param="chat_template",
        ) from None


def _names(template: str, variable: str) -> bool:
    """Return whether the template reads `variable` from its caller."""
    from jinja2 import Environment
    from jinja2.ext import loopcontrols
    from jinja2.meta import find_undeclared_variables

    from weftline_server.prompt.jinja_tags import Generation

    environment = Environment(extensions=[loopcontrols, Generation])  # parses, and renders nothing
    return variable in find_undeclared_variables(environment.parse(template))


def _to_json(value: Any, **options: Any) -> str:
    # Jinja's own filter escapes for HTML; model templates expect plain JSON.
    return json.dumps(value, ensure_ascii=False, indent=options.get("indent"))


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
