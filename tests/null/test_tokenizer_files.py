"""A tokenizer's file is read once, ahead of its use, and again when it has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from weftline_server.prompt.tokenizer_files import read_ahead, tokenizer_of


def written(path: Path, *words: str) -> str:
    """A file of a tokenizer that knows these words."""
    ids = {word: id for id, word in enumerate(words)}
    Tokenizer(WordLevel(ids, unk_token=words[0])).save(str(path))
    return str(path)


def test_engines_of_a_model_share_one_tokenizer(tmp_path: Path) -> None:
    path = written(tmp_path / "tokenizer.json", "a", "b")
    read_ahead(Path(path))
    first = tokenizer_of(path)
    assert first.get_vocab() == {"a": 0, "b": 1}
    assert tokenizer_of(path) is tokenizer_of(path)


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path / "tokenizer.json", "a", "b")
    first = tokenizer_of(path)
    written(tmp_path / "tokenizer.json", "c", "d")
    os.utime(path, (1, 1))  # a clock that is coarse would show no change
    second = tokenizer_of(path)
    assert second is not first and second.get_vocab() == {"c": 0, "d": 1}


def test_a_broken_file_is_an_error_where_the_tokenizer_is_needed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokenizer.json"
    read_ahead(path)
    with pytest.raises(FileNotFoundError):
        tokenizer_of(str(path))
    path.write_text("{}")
    read_ahead(path)
    with pytest.raises(Exception, match="Model missing"):
        tokenizer_of(str(path))
    assert capfd.readouterr() == ("", "")
