"""Tests whose body is a coroutine that is given what a helper opens for it, and closes afterwards."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

Body = Callable[..., Awaitable[Any]]
Play = Callable[..., Any]
"""Gets the body, and each fixture that it needs by its name."""


def scene(
    play: Play, *, supplies: tuple[str, ...], needs: tuple[str, ...] = ()
) -> Callable[[Body], Callable[..., None]]:
    """A decorator: a test names what it wants of what `play` supplies; its other parameters are pytest's."""

    def decorate(test: Body) -> Callable[..., None]:
        wanted = set(inspect.signature(test).parameters)
        asked = sorted(wanted - set(supplies) | set(needs))

        @functools.wraps(test)
        def tested(**given: Any) -> None:
            async def body(*supplied: Any) -> None:
                found = {**given, **dict(zip(supplies, supplied, strict=True))}
                await test(**{name: found[name] for name in wanted})

            play(body, **{name: given[name] for name in needs})

        tested.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in asked]
        )
        return tested

    return decorate
