"""The table of sampling parameters: what each means, its range, and its place in other APIs.

Everything else about a parameter follows from its row: the check of its value, the fields of HTTP
requests and their reference, the model's defaults, the requests to engines, and what a graph of
LangChain or LlamaIndex may hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from weftline.contract.bodies import JsonBody

MAX_TOKENS = 1 << 20


class EngineApi(StrEnum):
    """The APIs by which engines take sampling parameters."""

    OPENAI = "openai"  # only what OpenAI documents
    EXTENDED = "extended"  # with what vLLM, SGLang and llama.cpp add to it in the same words
    VLLM = "vllm"
    SGLANG = "sglang"  # its own /generate
    LLAMA = "llama"  # llama-server's own /completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A row of the table. `says` and `example` are for the reference of the HTTP interface.

    A number is in `least` to `most`. `neutral` changes nothing. An engine gets it if neither the
    client nor, for a parameter `of_model`, the model's publisher says otherwise. A parameter that
    `is_openai` is documented by OpenAI. `names` has the names of other APIs, None for one that has
    no such parameter. `off` has an API's own value for `neutral`, None to leave the parameter out.
    Clients of other APIs may say `also_off` for `neutral`.
    """

    says: str
    example: Any
    least: float | None = None
    most: float | None = None
    neutral: bool | float | None = None
    of_model: bool = False
    is_openai: bool = False
    names: Mapping[EngineApi, str | None] = field(default_factory=dict)
    off: Mapping[EngineApi, float | None] = field(default_factory=dict)
    also_off: float | None = None

    def typed(self, value: Any) -> Any:
        """A value in the type of `neutral`: a model's file says 40.0 where 40 is meant."""
        kind: Any = type(self.neutral)
        return kind(value)

    def name_in(self, api: EngineApi, own: str) -> str | None:
        """The name in `api`; None if the parameter is not sent there."""
        if api is EngineApi.OPENAI and not self.is_openai:
            return None
        return self.names.get(api, own)

    def value_in(self, api: EngineApi, value: Any) -> Any:
        """A value as `api` takes it. None is left out.

        What a model's publisher chose is used where a request says nothing, so a parameter
        `of_model` is always sent. llama-server has defaults of its own for all parameters.
        """
        if value != self.neutral:
            return value
        return self.off.get(api, value) if self.of_model or api is EngineApi.LLAMA else None


def parameter(default: Any = None, *, hashed: bool = True, **row: Any) -> Any:
    """A field of a dataclass with its row of the table. A dict is not `hashed`, only compared."""
    about = {"parameter": Parameter(**row)}
    return field(default=default, hash=None if hashed else False, metadata=about)


def rows_of(cls: type) -> Iterator[tuple[str, Parameter]]:
    """The parameters that are fields of a class, in order."""
    for one in fields(cls):
        if "parameter" in one.metadata:
            yield one.name, one.metadata["parameter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSampling(JsonBody):
    """The parameters that have one name and one form in all APIs of the server."""

    min_tokens: int = parameter(
        0,
        says="The fewest tokens of the output.",
        example=0,
        least=0,
        most=MAX_TOKENS,
        neutral=0,
        names={EngineApi.SGLANG: "min_new_tokens", EngineApi.LLAMA: None},
    )
    temperature: float | None = parameter(
        says="0 takes the likeliest token each time. A higher one varies more.",
        example=0.7,
        least=0,
        most=100,
        neutral=1.0,
        of_model=True,
        is_openai=True,
    )
    top_p: float | None = parameter(
        says="Samples among the likeliest tokens that have this share together.",
        example=0.95,
        least=0,
        most=1,
        neutral=1.0,
        of_model=True,
        is_openai=True,
    )
    top_k: int | None = parameter(
        says="Samples among this many of the likeliest tokens.",
        example=40,
        least=0,
        most=MAX_TOKENS,
        neutral=0,
        of_model=True,
        # vLLM and llama.cpp say 0, SGLang says -1, and an unknown server may know neither.
        off={EngineApi.SGLANG: -1, EngineApi.EXTENDED: None},
        also_off=-1,
    )
    min_p: float | None = parameter(
        says="Leaves out tokens less likely than this share of the likeliest.",
        example=0.05,
        least=0,
        most=1,
        neutral=0.0,
    )
    presence_penalty: float | None = parameter(
        says="Lowers the chance of every token that the output has already.",
        example=0.0,
        least=-2,
        most=2,
        neutral=0.0,
        is_openai=True,
    )
    frequency_penalty: float | None = parameter(
        says="Lowers a token's chance by how often the output has it.",
        example=0.0,
        least=-2,
        most=2,
        neutral=0.0,
        is_openai=True,
    )
    repetition_penalty: float | None = parameter(
        says="Divides the chance of tokens that prompt or output have. 1 is off.",
        example=1.0,
        least=0.01,
        most=100,
        neutral=1.0,
        names={EngineApi.LLAMA: "repeat_penalty"},
    )
    seed: int | None = parameter(
        says="Makes sampling repeatable on the same engine.", example=7, is_openai=True
    )
    stop_token_ids: tuple[int, ...] = parameter(
        (), says="Tokens at which the output ends; their text is left out.", example=[2]
    )
    ignore_eos: bool = parameter(
        False, says="Generate on after the model's end token.", example=False, neutral=False
    )
    logit_bias: dict[str, float] | None = parameter(
        hashed=False,
        says="Added to the logits of at most 1,024 tokens, by their ids. -100 bans a token, 100 "
        "allows no others.",
        example={"15": -100},
        is_openai=True,
    )


COMMON: Mapping[str, Parameter] = MappingProxyType(dict(rows_of(CommonSampling)))
_ALSO_OFF = {name: one.also_off for name, one in COMMON.items() if one.also_off is not None}
# The numbers and flags. Each engine has a form of its own for tokens, texts and the seed.
NUMBERS: Mapping[str, Parameter] = MappingProxyType(
    {name: one for name, one in COMMON.items() if one.neutral is not None}
)


def sent(params: object, api: EngineApi) -> dict[str, Any]:
    """The numbers and flags of an engine's sampling parameters, as `api` takes them."""
    body: dict[str, Any] = {}
    for own, one in NUMBERS.items():
        name, value = one.name_in(api, own), one.value_in(api, getattr(params, own))
        if name is not None and value is not None:
            body[name] = value
    return body


def common(of: CommonSampling) -> dict[str, Any]:
    """The common parameters by name, with `neutral` for what other APIs say instead of it."""
    given = {name: getattr(of, name) for name in COMMON}
    for name, off in _ALSO_OFF.items():
        if given[name] == off:
            given[name] = COMMON[name].neutral
    return given
