"""How many tokens of each context vLLM's KV cache holds, by the blocks that it says it has.

The code is pure. A block is found by the block before it and its own tokens, so no hash of vLLM has
to be computed here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from weftline_engine.api import Residency
from weftline_engine.remote.prefix_cache.held_tails import HeldTails
from weftline_engine.remote.prefix_cache.kv_events import (
    BlockName,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    KVEvent,
    TailsStored,
)

# Contexts that are remembered; the oldest is forgotten.
MOST_CONTEXTS = 8192
# The most blocks that are remembered where vLLM does not tell the size of its cache. Blocks whose
# removal was missed, because a message was lost, make room for newer ones.
MOST_BLOCKS = 1 << 16

_Key = tuple[BlockName | None, tuple[int, ...], tuple[str, ...]]


@dataclass(eq=False, slots=True)
class _Block:
    """A block that was stored. It is kept while it is nowhere, because it may be stored again."""

    key: _Key
    on_device: bool = False
    on_host: bool = False
    readers: dict[str, None] = field(default_factory=dict)  # contexts, the oldest first


@dataclass(frozen=True, slots=True)
class HeldPart:
    """Where the server holds a context, and how many of its first tokens. With `places` it goes on
    only behind so many tokens, the fewest first; None is behind any."""

    residency: Residency
    tokens: int
    places: tuple[int, ...] | None = None


@dataclass(slots=True)
class _Watched:
    tokens: tuple[int, ...]
    salt: str | None
    path: list[BlockName] = field(default_factory=list)  # its known blocks, from the start
    told: HeldPart | None = None


class HeldBlocks:
    """The blocks of one server, and the contexts that have them.

    Without `salts` its events do not name the tenant's salt. Then equal prompts of two tenants
    count as one, which places a call worse and changes no text. The server's model has layers with
    a state or with windows if `tails`, or if an event names one.
    """

    def __init__(
        self, most_blocks: int = MOST_BLOCKS, *, salts: bool = True, tails: bool = False
    ) -> None:
        self._most = most_blocks
        self._salts = salts
        self._group: int | None = None  # the group of layers whose blocks are followed
        self._tails = HeldTails(most_blocks) if tails else None
        self._blocks: OrderedDict[BlockName, _Block] = OrderedDict()
        self._by_key: dict[_Key, BlockName] = {}
        self._watched: OrderedDict[str, _Watched] = OrderedDict()
        self._waiting: dict[_Key, dict[str, None]] = {}  # contexts by the block that they lack next
        self._changed: dict[str, None] = {}
        self._size = 0  # tokens of a block; 0 before the first is stored

    def __len__(self) -> int:
        return len(self._blocks)

    def watch(self, context: str, tokens: tuple[int, ...], salt: str | None) -> None:
        """Follow the blocks of a context, which now has these tokens."""
        self._forget(context)
        self._watched[context] = _Watched(tokens, salt)
        self._advance(context)
        while len(self._watched) > MOST_CONTEXTS:
            self._forget(next(iter(self._watched)))

    def apply(self, events: Iterable[KVEvent]) -> None:
        """Take in what vLLM has stored and removed."""
        for event in events:
            match event:
                case BlocksCleared():
                    for block in self._blocks.values():
                        block.on_device = block.on_host = False
                        self._changed |= block.readers
                    if self._tails is not None:
                        self._tails.clear()
                case BlocksRemoved(names, on_host, group):
                    for name in names:
                        self._remove(name, on_host, group)
                case TailsStored():
                    for name in event.names:
                        self._keep(event, name)
                case _:
                    self._take(event)

    def _take(self, event: BlocksStored) -> None:
        """Take in stored blocks. Other groups of layers have the same blocks as the first."""
        if self._group is None:
            self._group = event.group
        if event.group != self._group:
            return
        parent = event.parent
        for name, tokens, extra in zip(event.names, event.tokens, event.extras, strict=True):
            if parent is not None and parent not in self._blocks:
                break  # it was stored before we listened
            key = (parent, tokens, extra if self._salts else ())
            self._store(name, key, event.on_host)
            parent = name

    def changes(self, runs: Callable[[str], bool]) -> Iterator[tuple[str, HeldPart]]:
        """The contexts whose state differs from the one that was told last.

        Nothing is told of a context before the server has a block of it: its events may come later
        than the answer of an op.

        A context of which `runs` is true is told later.
        """
        changed, self._changed = self._changed, {}
        for context in changed:
            found = self._watched.get(context)
            if found is None:
                continue
            if runs(context):
                self._changed[context] = None
                continue
            state = self._state(found)
            if state != found.told and (found.told or self._begins(found)):
                found.told = state
                yield context, state

    def _begins(self, watched: _Watched) -> bool:
        """Whether the server has the first block of a context."""
        first = self._blocks[watched.path[0]] if watched.path else None
        return first is not None and (first.on_device or first.on_host)

    def _state(self, watched: _Watched) -> HeldPart:
        """What is held. The blocks behind the last place to go on are of no use."""
        tokens, residency, places = 0, Residency.RESIDENT, list[int]()
        found = HeldPart(Residency.DROPPED, 0, None if self._tails is None else ())
        along = None if self._tails is None else self._tails.along(self._size)
        for name in watched.path:
            block = self._blocks[name]
            if not block.on_device and not block.on_host:
                break
            if not block.on_device:
                residency = Residency.HOST
            tokens += self._size
            if along is None:
                found = HeldPart(residency, tokens)
            elif (tail := along.next(name)) is not Residency.DROPPED:
                places.append(tokens)
                both = residency if tail is Residency.RESIDENT else tail
                found = HeldPart(both, tokens, tuple(places))
        return found

    def _keep(self, event: TailsStored, name: BlockName) -> None:
        """Note a tail. The first of a group changes what is known of all contexts."""
        if self._tails is None:
            self._tails = HeldTails(self._most)
        if not self._tails.has(event.group):
            self._changed |= dict.fromkeys(self._watched)
        for one in (name, self._tails.store(event, name)):
            if one is not None and (block := self._blocks.get(one)) is not None:
                self._changed |= block.readers

    def _store(self, name: BlockName, key: _Key, on_host: bool) -> None:
        block = self._blocks.get(name)
        if block is None:
            block = self._blocks[name] = _Block(key)
            self._by_key[key] = name
            if not self._size:
                self._size = len(key[1])
                for context in self._watched:
                    self._advance(context)
        if on_host:
            block.on_host = True
        else:
            block.on_device = True
        self._blocks.move_to_end(name)
        self._changed |= block.readers
        for context in self._waiting.pop(key, ()):
            self._advance(context)
        while len(self._blocks) > self._most:
            self._drop(next(iter(self._blocks)))

    def _remove(self, name: BlockName, on_host: bool, group: int) -> None:
        block = self._blocks.get(name)
        if self._tails is not None and self._tails.has(group):
            self._tails.remove(name, group, on_host)
            self._changed |= {} if block is None else block.readers
            return
        if block is None or group != self._group:
            return
        if on_host:
            block.on_host = False
        else:
            block.on_device = False
        self._changed |= block.readers
        if not block.on_device and not block.on_host:
            self._blocks.move_to_end(name, last=False)  # it makes room first

    def _drop(self, name: BlockName) -> None:
        """Forget a block. Its readers wait for it anew."""
        block = self._blocks.pop(name)
        if self._by_key.get(block.key) == name:
            del self._by_key[block.key]
        for context in list(block.readers):
            found = self._watched[context]
            self._leave(context, found)
            self._advance(context)

    def _advance(self, context: str) -> None:
        """Add the known blocks behind the last one, and wait for the next."""
        found = self._watched[context]
        while True:
            key = self._next(found)
            name = self._by_key.get(key) if key is not None else None
            if name is None:
                break
            found.path.append(name)
            self._blocks[name].readers[context] = None
        self._changed[context] = None
        if key is not None:
            self._waiting.setdefault(key, {})[context] = None

    def _next(self, watched: _Watched) -> _Key | None:
        if not self._size:
            return None
        at = len(watched.path) * self._size
        tokens = watched.tokens[at : at + self._size]
        if len(tokens) < self._size:
            return None
        if not watched.path:
            return (None, tokens, (watched.salt,) if watched.salt and self._salts else ())
        return (watched.path[-1], tokens, ())

    def _forget(self, context: str) -> None:
        found = self._watched.pop(context, None)
        if found is not None:
            self._leave(context, found)
            self._changed.pop(context, None)

    def _leave(self, context: str, watched: _Watched) -> None:
        key = self._next(watched)
        if key is not None and (waiting := self._waiting.get(key)) is not None:
            waiting.pop(context, None)
            if not waiting:
                del self._waiting[key]
        for name in watched.path:
            if block := self._blocks.get(name):
                block.readers.pop(context, None)
        watched.path.clear()
