"""Large values as JSON, each made once for all who read it, within limits of bytes under way."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from weftline_server.observe.parts import to_json
from weftline_server.session.session import ServerSession

PIECE_CHARS = 1 << 16  # sent at once; about what a connection holds for a slow reader
# Of a tenant, and of all. Eight of the largest bodies, and one each of many tenants. A client that
# reads nothing is dropped after 30 s, and what it held is free then.
MOST_OF_TENANT = 64 << 20
MOST = 512 << 20


class Rendering:
    """The JSON of one value, and how many readers it has."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.readers = 0

    @property
    def size(self) -> int:
        return sys.getsizeof(self.text)


class Renderings:
    """The renderings that are sent now.

    A reader that has no room waits, and is not refused: it holds nothing meanwhile, as its value is
    rendered when its turn has come, and it would only ask again. A tenant that has nothing under
    way always has room, so no tenant waits for another's readers alone.
    """

    def __init__(self, most_of_tenant: int = MOST_OF_TENANT, most: int = MOST) -> None:
        self._most_of_tenant = most_of_tenant
        self._most = most
        self._now: dict[tuple[str, str], Rendering] = {}  # by session and variable
        self._waiting: list[asyncio.Future[None]] = []
        self.bytes: Counter[str] = Counter()  # under way, by tenant
        self.made = 0

    def has_room(self, session: ServerSession, variables: Sequence[str]) -> bool:
        """Whether these values may be rendered now. What is rendered already needs no room."""
        if all((session.id, variable) in self._now for variable in variables):
            return True
        own = self.bytes[session.tenant]
        return not own or (own < self._most_of_tenant and self.bytes.total() < self._most)

    async def changed(self) -> None:
        """Return when a rendering is free."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def enter(self, session: ServerSession, variables: Sequence[str]) -> Held:
        """Render the values of ready variables, where no other reader has them. There is room."""
        found = {}
        for variable in variables:
            place = session.id, variable
            one = self._now.get(place)
            if one is None:
                self.made += 1
                one = self._now[place] = Rendering(to_json(session.variable(variable).value))
                self.bytes[session.tenant] += one.size
            one.readers += 1
            found[variable] = one
        return Held(self, session, found)

    def leave(self, session: ServerSession, found: Mapping[str, Rendering]) -> None:
        """A reader has its values. Only `Held` says so, once."""
        for variable, one in found.items():
            one.readers -= 1
            if not one.readers:
                del self._now[session.id, variable]
                self.bytes[session.tenant] -= one.size
        if not self.bytes[session.tenant]:
            del self.bytes[session.tenant]
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class Held:
    """The renderings of one reader, until it has read them."""

    def __init__(
        self, renderings: Renderings, session: ServerSession, found: Mapping[str, Rendering]
    ) -> None:
        self._renderings = renderings
        self._session = session
        self._found = found

    def pieces(self, variable: str) -> Iterator[str]:
        """The JSON of a value."""
        text = self._found[variable].text
        return (text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS))

    def release(self) -> None:
        """The reader has read all of it, or has left."""
        found, self._found = self._found, {}
        if found:
            self._renderings.leave(self._session, found)
