"""Files of Q4_K_M with random weights: three families, each with its own chat template.

The shapes are the smallest that have whole blocks of 256 weights. The templates are ours. They
write the marks and the roles of their families, and refuse what the publishers' refuse.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.blocks import random_rows
from weftline_kernels.cpu.blocks import WeightType

HIDDEN, MLP, LAYERS, HEADS, KV_HEADS = 256, 512, 2, 4, 2
WORDS = 700  # tokens that are taken of SmolLM2's vocabulary

# The kinds of a token in a GGUF.
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6

QWEN3 = """
{%- if tools %}{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{% endif %}
{{- '# Tools\n<tools>' }}{% for tool in tools %}{{- '\n' + (tool | tojson) }}{% endfor %}
{{- '\n</tools>\n<tool_call>{"name": NAME, "arguments": OBJECT}</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for m in messages[::-1] %}
  {%- if m.role == 'user' and not ns.last %}
    {%- set ns.last = messages | length - loop.index0 %}
  {%- endif %}
{%- endfor %}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {{- '<|im_start|>assistant\n' + m.content.split('</think>')[-1].lstrip('\n') }}
    {%- for call in m.tool_calls or [] %}
      {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
      {{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
  {%- elif m.role == 'tool' %}
    {%- if loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
    {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
    {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{% endif %}
  {%- elif not (m.role == 'system' and loop.first) %}
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}
    {{- '<think>\n\n</think>\n\n' }}
  {%- endif %}
{%- endif %}
"""
LLAMA = """
{{- bos_token }}
{%- macro turn(role) %}{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}{% endmacro %}
{%- if messages[0]['role'] == 'system' %}
  {%- set system, rest = messages[0]['content'] | trim, messages[1:] %}
{%- else %}{%- set system, rest = '', messages %}{% endif %}
{{- turn('system') }}{% if tools is not none %}{{- 'Environment: ipython\n' }}{% endif %}
{{- system + '<|eot_id|>' }}
{%- if tools is not none and rest | length == 0 %}
  {{- raise_exception('tools need a user') }}
{%- endif %}
{%- for m in rest %}
  {%- if loop.first and tools is not none %}
    {{- turn('user') }}{{- 'Answer in JSON: {"name": function, "parameters": dictionary}\n' }}
    {%- for t in tools %}{{- (t | tojson(indent=4)) + '\n\n' }}{% endfor %}
    {{- m['content'] | trim + '<|eot_id|>' }}
  {%- elif 'tool_calls' in m %}
    {%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at once') }}{% endif %}
    {%- set call = m.tool_calls[0].function %}
    {{- turn('assistant') }}{{- '{"name": "' + call.name + '", "parameters": ' }}
    {{- (call.arguments | tojson) + '}<|eot_id|>' }}
  {%- elif m.role in ('tool', 'ipython') %}
    {{- turn('ipython') }}
    {{- (m.content if m.content is string else m.content | tojson) + '<|eot_id|>' }}
  {%- else %}
    {{- turn(m.role) }}{{- m['content'] | trim + '<|eot_id|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- turn('assistant') }}{% endif %}
"""
GEMMA3 = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
  {%- set first, rest = messages[0]['content'] + '\n\n', messages[1:] %}
{%- else %}{%- set first, rest = '', messages %}{% endif %}
{%- for m in rest %}
  {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('roles must alternate user/assistant') }}
  {%- endif %}
  {{- '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}
  {{- (first if loop.first else '') + (m['content'] | trim) + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{% endif %}
"""


@dataclass(frozen=True)
class ChatFamily:
    """A family as its files state it. `controls` and `marks` are its control tokens and the tokens
    that its users may write; the first control token begins a text, the second one ends a turn."""

    architecture: str
    template: str
    controls: tuple[str, ...]
    marks: tuple[str, ...] = ()
    cut: str | None = None  # how llama.cpp calls the pre-tokenizer; None: SentencePiece
    head_size: int = 64
    untied: bool = False
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    head_norms: bool = False
    window: int | None = None


FAMILIES = {
    "qwen3": ChatFamily(
        "qwen3",
        QWEN3,
        ("<|endoftext|>", "<|im_end|>", "<|im_start|>"),
        ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>"),
        cut="qwen2",
        head_size=128,
        head_norms=True,
    ),
    "llama": ChatFamily(
        "llama",
        LLAMA,
        ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
        cut="llama-bpe",
        untied=True,
    ),
    "gemma3": ChatFamily(
        "gemma3",
        GEMMA3,
        ("<bos>", "<end_of_turn>", "<start_of_turn>"),
        norms=("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"),
        head_norms=True,
        window=64,
    ),
}


def write_chat_gguf(
    path: Path, family: ChatFamily, tokenizer: Path, classes: tuple[str, ...] = ()
) -> Path:
    """Write a model of `family`. Its words are the first ones of `tokenizer`, SmolLM2's. With
    `classes` it is one that scores texts by them, as llama-server reranks."""
    writer = gguf.GGUFWriter(path, family.architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(family.head_size)
    writer.add_value_length(family.head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    if family.window is not None:
        writer.add_sliding_window(family.window)
    vocabulary = _add_tokenizer(writer, family, tokenizer)
    writer.add_chat_template(family.template)
    for seed, (name, (kind, shape)) in enumerate(_tensors(family, vocabulary).items()):
        if kind is WeightType.F32:
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
        else:
            rows = random_rows(kind, shape[0], shape[1], seed)
            raw = gguf.GGMLQuantizationType(int(kind))
            writer.add_tensor(f"{name}.weight", rows, raw_dtype=raw)
    if classes:
        writer.add_array(f"{family.architecture}.classifier.output_labels", classes)
        scores = np.random.default_rng(0).normal(0, 1, (len(classes), HIDDEN))
        writer.add_tensor("cls.output.weight", scores.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(family: ChatFamily, vocabulary: int) -> dict[str, tuple[WeightType, tuple[int, ...]]]:
    """Types and shapes as Q4_K_M has them: values and the way back are finer in some layers, and so
    is the matrix of the vocabulary."""
    fine, coarse, whole = WeightType.Q6_K, WeightType.Q4_K, WeightType.F32
    query, key = HEADS * family.head_size, KV_HEADS * family.head_size
    found: dict[str, tuple[WeightType, tuple[int, ...]]] = {
        "token_embd": (coarse if family.untied else fine, (vocabulary, HIDDEN)),
        "output_norm": (whole, (HIDDEN,)),
    }
    if family.untied:
        found["output"] = (fine, (vocabulary, HIDDEN))
    for layer in range(LAYERS):
        some = fine if layer == 0 else coarse
        matrices = {
            "attn_q": (coarse, (query, HIDDEN)),
            "attn_k": (coarse, (key, HIDDEN)),
            "attn_v": (some, (key, HIDDEN)),
            "attn_output": (coarse, (HIDDEN, query)),
            "ffn_gate": (coarse, (MLP, HIDDEN)),
            "ffn_up": (coarse, (MLP, HIDDEN)),
            "ffn_down": (some, (HIDDEN, MLP)),
            **dict.fromkeys(family.norms, (whole, (HIDDEN,))),
        }
        if family.head_norms:
            matrices |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), (whole, (family.head_size,)))
        found |= {f"blk.{layer}.{name}": matrix for name, matrix in matrices.items()}
    return found


def _add_tokenizer(writer: gguf.GGUFWriter, family: ChatFamily, tokenizer: Path) -> int:
    """Write the vocabulary, and return its size."""
    special = [*family.controls, *family.marks]
    kinds = [CONTROL] * len(family.controls) + [USER_DEFINED] * len(family.marks)
    add = _byte_level if family.cut else _sentencepiece
    words, word_kinds = add(writer, tokenizer)
    writer.add_tokenizer_model("gpt2" if family.cut else "llama")
    if family.cut:
        writer.add_tokenizer_pre(family.cut)
    writer.add_token_list([*words, *special])
    writer.add_token_types([*word_kinds, *kinds])
    first = len(words)
    writer.add_bos_token_id(first)
    writer.add_eos_token_id(first + 1)
    writer.add_add_bos_token(family.cut != "qwen2")
    if not family.cut:
        # Where no merges are stored, words of a better score are joined first.
        writer.add_token_scores([-float(i) for i in range(first + len(special))])
    return first + len(special)


Words = tuple[list[str], list[int]]
_Add = Callable[[gguf.GGUFWriter, Path], Words]


def _byte_level(writer: gguf.GGUFWriter, tokenizer: Path) -> Words:
    """The 256 bytes and the words of the first merges."""
    merges = [" ".join(pair) for pair in _merges(tokenizer)]
    writer.add_token_merges(merges)
    joined = [merge.replace(" ", "") for merge in merges]
    words = list(dict.fromkeys([*bytes_to_unicode().values(), *joined]))
    return words, [NORMAL] * len(words)


def _sentencepiece(writer: gguf.GGUFWriter, tokenizer: Path) -> Words:
    """The 256 bytes, the letters and words of ASCII, with a mark for the space."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [chr(code) for code in range(33, 127)]
    joined = ["".join(pair).replace("Ġ", "▁") for pair in _merges(tokenizer)]
    words = list(
        dict.fromkeys(
            ["▁", *letters, *(word for word in joined if word.replace("▁", "").isascii())]
        )
    )
    return [*bytes_, *words], [BYTE] * 256 + [NORMAL] * len(words)


def _merges(tokenizer: Path) -> list[list[str]]:
    found = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["merges"][:WORDS]
    return [one.split(" ") if isinstance(one, str) else one for one in found]
