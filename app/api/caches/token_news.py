"""Which families of tokens changed lately, in whatever process: what is remembered of them must be asked for again."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.api.caches.listening import Listening
from app.db.base.listen import RECONNECT
from app.loop.controller import Wakeups

MAX_FAMILIES = 10_000
"""Beyond, all families count as changed when the one that changed longest ago is forgotten."""


class TokenNews(Listening):
    """Hears of families that were rotated or revoked, by the root that `app.db.operations.tokens` announces."""

    def __init__(self, wakeups: Wakeups) -> None:
        super().__init__(wakeups, "plimsoll-token-news")
        self._changed_s: OrderedDict[str, float] = OrderedDict()
        self._all_changed_s = 0.0
        self._watchers: defaultdict[str, set[Callable[[], None]]] = defaultdict(set)

    def is_old(self, root: str, asked_s: float) -> bool:
        """Whether a family changed at or after that moment of the event loop's clock, or may have, unheard."""
        changed_s = max(self._all_changed_s, self._changed_s.get(root, 0.0))
        return asked_s <= changed_s or not self.still_knows(asked_s)

    @contextmanager
    def watching(self, root: str, act: Callable[[], None]) -> Iterator[None]:
        """Call `act` whenever that family changes."""
        self._watchers[root].add(act)
        try:
            yield
        finally:
            self._watchers[root].discard(act)
            # Otherwise every token that ever had a page open would be kept.
            if not self._watchers[root]:
                del self._watchers[root]

    async def hear(self, what: str, /) -> None:
        """That family changed."""
        now_s = asyncio.get_running_loop().time()
        if what == RECONNECT:
            # What happened before was not heard.
            self._all_changed_s = now_s
            meant = [act for acts in self._watchers.values() for act in acts]
        else:
            self._changed_s[what] = now_s
            self._changed_s.move_to_end(what)
            meant = list(self._watchers.get(what, ()))
        if len(self._changed_s) > MAX_FAMILIES:
            _, self._all_changed_s = self._changed_s.popitem(last=False)
        for act in meant:
            act()
