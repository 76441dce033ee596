"""Operating points that both sides of a pipe know: sent once, then named.

They are nearly all of a problem's bytes (4 MB for 48 networks on four GPU types) and seldom change from one request to
the next; to pack and unpack them costs more than to change a plan. Each message names those that stood in the message
before by their place there, so neither side keeps more than one problem's points. Points that were sent once stay the
same objects on the other side, too, by which solvers see at once that nothing changed.
"""

from typing import TypeAlias

from solvers.types.problem import OperatingPoints

Packed: TypeAlias = tuple[OperatingPoints | int, ...]


class SentPoints:
    """The sender's side of one pipe."""

    def __init__(self) -> None:
        self._last: tuple[OperatingPoints, ...] = ()

    def pack(self, points: tuple[OperatingPoints, ...]) -> Packed:
        """The points, those of the last message by their place in it. Known by identity alone."""
        # To compare them by value would cost as much as to send them; ids hold, since `_last` keeps the objects
        # alive.
        place = {id(each): at for at, each in enumerate(self._last)}
        packed = tuple(place.get(id(each), each) for each in points)
        self._last = points
        return packed


class ReceivedPoints:
    """The receiver's side of one pipe."""

    def __init__(self) -> None:
        self._last: tuple[OperatingPoints, ...] = ()

    def unpack(self, packed: Packed) -> tuple[OperatingPoints, ...]:
        """The points that were packed."""
        self._last = tuple(
            self._last[each] if isinstance(each, int) else each for each in packed
        )
        return self._last
