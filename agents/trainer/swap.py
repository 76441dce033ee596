"""Swap hooks for training loops: give the GPU's memory back at a step's boundary, and take it again later.

    with SwapHooks(offload=to_host, resume=to_gpu) as hooks:
        print(hooks.url)
        for batch in data:
            train(batch)
            hooks.step_boundary()
            if it_is_time:
                save(...)
                hooks.note_checkpoint()

    running ──PUT /offload──▶ asked ──step_boundary()──▶ offloading ──▶ offloaded ──PUT /resume──▶ resuming ──▶ running
       ▲─────────PUT /resume────┘
    offload or resume raises ──▶ failed;  the `with` is left ──▶ ended

HTTP runs in a thread of its own; `offload` and `resume` run in the training loop's thread, inside `step_boundary`,
which does not return while memory is swapped out. PUT /offload and PUT /resume are answered when it is done, with 409
where the loop is not in the right state, and 503 where it came to no boundary in time (it moves at the next one).
GET /status says the state, how many boundaries were passed and in what time, and how many iterations are done and kept:
a loop that goes on from a checkpoint gives `start_iterations`, and calls `note_checkpoint` when all done so far is on
disk. What was not kept is done again by the next start of the program.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from types import TracebackType
from typing import Annotated, Literal, Self, TypeAlias

import msgspec
from aiohttp import web
from msgspec import Meta

from agents.serving.engines.errors import WrongState
from agents.serving.http_problems import problem

SwapState: TypeAlias = Literal[
    "running", "asked", "offloading", "offloaded", "resuming", "failed", "ended"
]
Counted: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
"""As the agent's wire contract bounds iterations, so that what a hook says can be passed on."""
_PENDING: dict[str, tuple[SwapState, ...]] = {
    "offloaded": ("asked", "offloading"),
    "running": ("resuming",),
}
"""What the loop goes through on its way to a wanted state."""
START_S = 30.0
BOUNDARY_TIMEOUT_S = 120.0
"""For a step to end and the memory to be moved."""
LEAVE_LOOK_S = 0.2
"""Between two looks whether to leave: a signal handler may come just before the wait, and then wakes no thread."""


class SwapStatus(msgspec.Struct):
    """The training loop as it is now."""

    state: SwapState
    steps: Counted
    """Boundaries passed."""
    start_iterations: Counted = 0
    """Done before by earlier processes, as this one found them kept."""
    done_iterations: Counted = 0
    kept_iterations: Counted = 0
    """From where another process would go on."""
    busy_s: Annotated[float, Meta(ge=0.0, le=1e12)] = 0.0
    """In steps, without the time in which the memory was away."""
    sm_count: Counted | None = None
    """SMs that the process sees; None = it does not say."""


class SwapHooks:
    """The state shared by the training loop and HTTP. A context manager: it listens from entry to exit."""

    def __init__(
        self,
        *,
        offload: Callable[[], None],
        resume: Callable[[], None],
        host: str = "127.0.0.1",
        port: int = 0,
        timeout_s: float = BOUNDARY_TIMEOUT_S,
        start_iterations: int = 0,
        sm_count: int | None = None,
    ) -> None:
        """`port` 0: any free one, see `url`; `timeout_s`: longest wait of a PUT; for the others see `SwapStatus`."""
        self.url = ""
        self._offload = offload
        self._resume = resume
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._state: SwapState = "running"
        self._steps = 0
        self._start = self._kept = start_iterations
        self._sm_count = sm_count
        self._busy_s = 0.0
        self._step_began_s = time.monotonic()
        self._is_leaving = False
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="swap-hooks", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self._step_began_s = time.monotonic()
        try:
            asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(START_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._become("ended")
        # The server belongs to the loop of the other thread, and so must be closed there.
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def status(self) -> SwapStatus:
        """The state now; from any thread."""
        with self._changed:
            return SwapStatus(
                state=self._state,
                steps=self._steps,
                start_iterations=self._start,
                done_iterations=self._start + self._steps,
                kept_iterations=self._kept,
                busy_s=self._busy_s,
                sm_count=self._sm_count,
            )

    def note_checkpoint(self) -> None:
        """All that is done so far is kept on disk."""
        with self._changed:
            self._kept = self._start + self._steps

    def step_boundary(self) -> None:
        """Offload here if it was asked for, and return when the memory is back, or the loop is to leave.

        Raises what the hooks raise.
        """
        with self._changed:
            self._steps += 1
            self._busy_s += time.monotonic() - self._step_began_s
            # Decided under the lock and carried out outside it: moving gigabytes must not keep others from
            # asking the state.
            is_asked = self._state == "asked" and not self._is_leaving
            if is_asked:
                self._state = "offloading"
        if is_asked:
            self._move(self._offload, "offloaded")
            if self._is_to_resume():
                self._move(self._resume, "running")
        self._step_began_s = time.monotonic()

    def leave(self) -> None:
        """The loop ends after its step, with its memory where it is then; from any thread or a signal handler."""
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()

    def ask(self, wanted: Literal["offloaded", "running"]) -> bool:
        """Ask for the memory to go or to come back, and wait; whether it did in time. Raises WrongState."""
        pending = _PENDING[wanted]
        before: SwapState = "running" if wanted == "offloaded" else "offloaded"
        with self._changed:
            if self._state == before:
                self._state = pending[0]
            elif wanted == "running" and self._state == "asked":
                self._state = "running"
            elif self._state not in (*pending, wanted):
                raise WrongState(
                    f"the training loop is {self._state}; it must be {before} for that"
                )
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._state not in pending, self._timeout_s)
            if self._state not in (*pending, wanted):
                raise WrongState(f"the training loop is {self._state} now")
            return self._state == wanted

    def _is_to_resume(self) -> bool:
        """Return when the memory is asked back; False: the loop is to leave before that."""
        with self._changed:
            # The wait has a limit, because a signal handler that runs just before it wakes no thread.
            while not self._changed.wait_for(
                lambda: self._state == "resuming" or self._is_leaving, LEAVE_LOOK_S
            ):
                pass
            return self._state == "resuming"

    def _move(self, action: Callable[[], None], then: SwapState) -> None:
        try:
            action()
        except BaseException:
            self._become("failed")
            raise
        self._become(then)

    def _become(self, state: SwapState) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    async def _open(self) -> None:
        app = web.Application()
        app.router.add_put("/offload", self._put_offload)
        app.router.add_put("/resume", self._put_resume)
        app.router.add_get("/status", self._get)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, *self._address).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def _close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        await self._loop.shutdown_default_executor()

    async def _put_offload(self, _: web.Request) -> web.Response:
        return await self._put("offloaded")

    async def _put_resume(self, _: web.Request) -> web.Response:
        return await self._put("running")

    async def _put(self, wanted: Literal["offloaded", "running"]) -> web.Response:
        try:
            is_done = await asyncio.to_thread(self.ask, wanted)
        except WrongState as error:
            return problem(HTTPStatus.CONFLICT, str(error))
        if not is_done:
            detail = f"the training loop came to no boundary within {self._timeout_s:g} s; it moves at the next one"
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail)
        return _json(self.status())

    async def _get(self, _: web.Request) -> web.Response:
        return _json(self.status())


def _json(body: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
