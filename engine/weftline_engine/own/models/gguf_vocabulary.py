"""Makes a tokenizer of a GGUF file's vocabulary, of the two kinds that language models have.

Byte pairs are GPT-2's, whose tokens are bytes in an alphabet of letters. Pieces are those of
SentencePiece, where a mark stands for a space and bytes have tokens of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

_MARK = "\u2581"
_CONTROL, _OF_USER = 3, 4  # of tokenizer.ggml.token_type
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}|{_REST}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}|\p{{N}}{{1,3}}|{_REST}"
)
# The expressions that cut a text before its merges, by llama.cpp's name of the pre-tokenizer.
SPLITS: Mapping[str, str] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "smaug-bpe", "dbrx", "lfm2"), _LLAMA3),
    "tekken": _TEKKEN,
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "gpt-4o": _GPT4O,
}
# The pre-tokenizers whose parts of a text are one token where the vocabulary has that token, also
# where no merges lead to it (`ignore_merges` in the publishers' tokenizer.json).
WHOLE = frozenset({"llama3", "llama-v3", "llama-bpe", "lfm2", "tekken"})
# Control tokens that a family's tokenizer has where the vocabulary does.
_OF_GPT2 = ("<|endoftext|>",)
_OF_LLAMA = ("<unk>", "<s>", "</s>")
_OF_GEMMA = ("<unk>", "<bos>", "<eos>", "<pad>", "<mask>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a file by their numbers, their types and scores, and the merges; all but the
    tokens may be missing."""

    tokens: list[str]
    types: Sequence[float]
    scores: Sequence[float]
    merges: Sequence[str]

    def of_type(self, kind: int) -> list[str]:
        return [one for one, found in zip(self.tokens, self.types, strict=False) if found == kind]


def byte_pairs(vocabulary: Vocabulary, pre_tokenizer: str) -> Tokenizer:
    """GPT-2's tokenizer, or one that cuts texts by another expression."""
    letters = _letters()
    alphabet = set(letters.values())
    ids = {
        one if set(one) <= alphabet else "".join(letters[byte] for byte in one.encode()): number
        for number, one in enumerate(vocabulary.tokens)
    }
    merges = [_pair(merge) for merge in vocabulary.merges]
    model = BPE(
        ids,
        merges,
        continuing_subword_prefix="",
        end_of_word_suffix="",
        fuse_unk=False,
        ignore_merges=pre_tokenizer in WHOLE,
    )
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.ByteLevel()
    split = SPLITS.get(pre_tokenizer)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split is not None:
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        cut = pre_tokenizers.Split(Regex(split), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, plain])
    # llama.cpp marks some words of other letters as control tokens, which they are not.
    control = [one for one in vocabulary.of_type(_CONTROL) if set(one) <= alphabet]
    return _with_added(tokenizer, vocabulary, [*_OF_GPT2, *control])


def pieces(vocabulary: Vocabulary, architecture: str) -> Tokenizer:
    """SentencePiece's tokenizer. Families differ in what they do to spaces."""
    gemma = architecture.startswith("gemma")
    tokens = vocabulary.tokens
    if gemma:  # its files hold tokens of several spaces without the mark
        tokens = [_MARK * len(one) if one.isspace() and " " in one else one for one in tokens]
    ids = {one: number for number, one in enumerate(tokens)}
    merges = [_pair(merge) for merge in vocabulary.merges]
    if not merges:
        # Gemma's scores do not follow the order in which tokens were merged; their numbers do.
        scores = [-float(number) for number in ids.values()] if gemma else vocabulary.scores
        merges = _merges_of(ids, dict(zip(tokens, scores, strict=True)))
    unknown = "<unk>" if gemma and "<unk>" in ids else None
    model = BPE(ids, merges, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    tokenizer = Tokenizer(model)
    plain = [decoders.Replace(_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if gemma:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.normalizer = normalizers.Replace(" ", _MARK)
    else:
        plain.append(decoders.Strip(content=" ", left=1))
        if architecture == "phi3":
            marks = [normalizers.Prepend(_MARK), normalizers.Replace(" ", _MARK)]
            tokenizer.normalizer = normalizers.Sequence(marks)
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
                replacement=_MARK, prepend_scheme="first", split=False
            )
    tokenizer.decoder = decoders.Sequence(plain)
    special = [*(_OF_GEMMA if gemma else _OF_LLAMA), *vocabulary.of_type(_CONTROL)]
    return _with_added(tokenizer, vocabulary, special)


def _with_added(tokenizer: Tokenizer, vocabulary: Vocabulary, special: Sequence[str]) -> Tokenizer:
    """The tokenizer, which keeps these tokens and those that the file adds whole in a text."""
    known = [one for one in special if tokenizer.token_to_id(one) is not None]
    tokenizer.add_special_tokens([AddedToken(one, normalized=False, special=True) for one in known])
    own = [one for one in vocabulary.of_type(_OF_USER) if tokenizer.token_to_id(one) is not None]
    tokenizer.add_tokens([AddedToken(one, normalized=False, special=False) for one in own])
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    first, second = merge.split(" ")
    return first, second


def _merges_of(ids: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The merges that a vocabulary with scores implies: tokens of two others, the best first."""
    found = []
    for token, score in scores.items():
        parts = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [pair for pair in parts if pair[0] in ids and pair[1] in ids]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [(score, first, second) for first, second in known]
    found.sort(key=lambda one: (one[0], len(one[1]), len(one[2])), reverse=True)
    return [(first, second) for _, first, second in found]


def _letters() -> dict[int, str]:
    """GPT-2's letter of each byte: the printable ones stand for themselves, the others for letters
    from 256 on."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    found, more = {}, 256
    for byte in range(256):
        found[byte] = chr(byte) if byte in plain else chr(more)
        more += byte not in plain
    return found
