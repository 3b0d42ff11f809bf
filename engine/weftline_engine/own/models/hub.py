"""Downloads a model from the Hugging Face Hub: a GGUF file, or safetensors, config and tokenizer.

No code is downloaded. What an interrupted download has is kept, and the next one goes on there.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from weftline_engine.own.models.cache import Cache
from weftline_engine.own.models.name import HubModel, ModelUnavailable
from weftline_engine.own.models.progress import StageDisplay, StageMeter

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from huggingface_hub.hf_api import RepoSibling

_WANTED = frozenset(
    {
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    }
)


def wanted(name: str) -> bool:
    """Return whether to download the file `name` of a repository.

    Sub-folders hold other formats, and consolidated.* holds the same weights again.
    """
    if "/" in name or name.startswith("consolidated"):
        return False
    return name in _WANTED or name.endswith(".safetensors")


@dataclass(frozen=True, slots=True)
class Fetched:
    """The files of a repository by name, complete and with the right hashes, and their commit."""

    commit: str
    files: dict[str, Path]


def fetch(
    model: HubModel, folder: Path, cache: Cache, progress: StageDisplay, *, words: bool = False
) -> Fetched:
    """Download `model` into `folder`, which holds what an earlier attempt has got.

    With `words`, its weights are left out. Raises ModelUnavailable: no network, no such repository
    or file, no access, no space, a wrong hash.
    """
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    failures: tuple[type[Exception], ...] = (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        *_network_errors(),
    )
    folder.mkdir(exist_ok=True)
    try:
        return _download(model, folder, cache, progress, words)
    except failures as error:
        raise _explain(model, error, begun=any(folder.glob("*.part"))) from error
    except ModelUnavailable:
        for name in _WANTED:  # small files without a hash, which are fetched again
            (folder / name).unlink(missing_ok=True)
        raise
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def _download(
    model: HubModel, folder: Path, cache: Cache, progress: StageDisplay, words: bool
) -> Fetched:
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()  # they would mix with ours
    name, hub = f"{model.owner}/{model.name}", HfApi()
    info = hub.model_info(name, revision=model.revision, files_metadata=True)
    files = _words(info.siblings or []) if words else _chosen(model, info.siblings or [])
    here = sum(path.stat().st_size for path in folder.iterdir())
    sizes = [file.size or 0 for file in files]
    cache.need(max(0, sum(sizes) - here), f"hf:{name}")
    assert info.sha is not None, "model_info always has the commit"
    found, done = {}, 0
    with progress.stage(f"download hf:{name}", sum(sizes), "bytes") as meter:
        for file, size in zip(files, sizes, strict=True):
            heard = partial(_hear, meter, done)
            found[file.rfilename] = _complete(name, info.sha, file, folder, heard)
            done += size
            meter.at(done)
    return Fetched(info.sha, found)


def _hear(meter: StageMeter, before: int, done: int) -> None:
    meter.at(before + done)


def _chosen(model: HubModel, files: Sequence[RepoSibling]) -> list[RepoSibling]:
    """The files to download: one GGUF, or safetensors with what belongs to them."""
    name = f"hf:{model.owner}/{model.name}"
    ggufs = sorted(one.rfilename for one in files if one.rfilename.endswith(".gguf"))
    some = ", ".join(ggufs[:8])
    if model.member is not None:
        found = [file for file in files if file.rfilename == model.member]
        if not found:
            other = f": it has {some}" if ggufs else ": it has no GGUF file"
            raise ModelUnavailable(f"{name} has no {model.member}{other}")
        return found
    found = [file for file in files if wanted(file.rfilename)]
    if any(file.rfilename.endswith(".safetensors") for file in found):
        return found
    if ggufs:
        raise ModelUnavailable(f"{name} has GGUF files: write {name}/FILE with one of {some}")
    raise ModelUnavailable(f"{name} has no safetensors: choose a model that has them")


def _words(files: Sequence[RepoSibling]) -> list[RepoSibling]:
    """The files with the tokenizer, the chat template and the settings."""
    return [file for file in files if file.rfilename in _WANTED]


def _complete(
    name: str, commit: str, file: RepoSibling, folder: Path, heard: Callable[[int], None]
) -> Path:
    """Download the rest of a file, check it, and return its path.

    Files with a hash are kept by it, so another content is another file. The others are small.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    sha256 = None if file.lfs is None else file.lfs.sha256
    whole = folder / (f"{sha256[:16]}-{file.rfilename}" if sha256 else file.rfilename)
    part = whole.with_name(f"{whole.name}.part")
    if sha256 is not None and whole.is_file():
        return whole
    if sha256 is None or (part.is_file() and file.size and part.stat().st_size > file.size):
        part.unlink(missing_ok=True)
    url = hf_hub_url(name, file.rfilename, revision=commit)
    with _Counted(part, heard) as into:
        begun = into.tell()
        try:
            http_get(
                url,
                into,
                resume_size=begun,
                headers=build_hf_headers(),
                expected_size=file.size,
            )
        except OSError as error:
            if error.errno is not None:
                raise  # the disk is full, or cannot be written
            raise ModelUnavailable(
                f"{file.rfilename} came short from the Hub: run it again, it goes on from there"
            ) from error
    _check_hash(file.rfilename, part, sha256)
    return part.replace(whole)


class _Counted(io.BufferedRandom):
    """A file to append to, which tells its length as it grows."""

    def __init__(self, path: Path, heard: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(path, "a+"))
        self._heard = heard

    def write(self, data: ReadableBuffer, /) -> int:
        written = super().write(data)
        self._heard(self.tell())
        return written


def _explain(model: HubModel, error: Exception, *, begun: bool) -> ModelUnavailable:
    """Return one sentence for an error of the Hub or of the network."""
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = f"{model.owner}/{model.name}"
    match error:
        case GatedRepoError():
            return ModelUnavailable(
                f"hf:{name} requires you to accept its terms: do so on the Hub and set HF_TOKEN"
            )
        case RevisionNotFoundError():
            return ModelUnavailable(f"hf:{name} has no revision {model.revision!r}: check it")
        case RepositoryNotFoundError():
            return ModelUnavailable(
                f"the Hub has no model {name}, or it is private: check the name, or set HF_TOKEN"
            )
    goes_on = "run it again, it goes on where it ended" if begun else "check the network"
    return ModelUnavailable(
        f"hf:{name} cannot be downloaded from the Hugging Face Hub ({type(error).__name__}): "
        f"{goes_on}, or give the path of a model directory or of a .gguf file"
    )


def _network_errors() -> tuple[type[Exception], ...]:
    """Return the base errors of httpx (huggingface_hub up to 1) and httpx2 (later versions)."""
    found = [name for name in ("httpx", "httpx2") if importlib.util.find_spec(name)]
    return tuple(importlib.import_module(name).HTTPError for name in found)


def _check_hash(name: str, path: Path, sha256: str | None) -> None:
    if sha256 is None:
        return
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != sha256:
        path.unlink()
        raise ModelUnavailable(f"{name} does not match the Hub's hash: try again")
