"""The solver worker that all applications of the tests share."""

import asyncio
from dataclasses import replace

from fastapi import FastAPI

from app.catalogue.make_rows import make_rows
from app.solver.findings import Findings, Inquiry
from app.solver.llm_rows import RowsAnswer, RowsRequest
from app.solver.process import PlanAnswer, PlanRequest, SolverWorker
from tests.waiting import PATIENCE_S

_worker = SolverWorker(make_rows=make_rows, grace_s=PATIENCE_S)
"""One process for all applications, since it takes seconds to start; it ends with the tests. On a busy machine a plan
may take longer than its time, for which a worker of a control plane is killed, and what was asked answered 503."""


class KeptSolver:
    """The solver worker of an application, which leaves its process to the next one."""

    def __init__(self) -> None:
        # Who waits for the worker waits here, in the application's own loop.
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        async with self._turn:
            await _worker.start()

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        async with self._turn:
            return await _worker.make_plan(request)

    async def inquire(self, inquiry: Inquiry) -> Findings:
        async with self._turn:
            return await _worker.inquire(inquiry)

    async def size_model(self, request: RowsRequest) -> RowsAnswer:
        async with self._turn:
            return await _worker.size_model(request)

    async def close(self) -> None:
        pass


def warm_solver() -> None:
    """Start it: on a busy machine that may take longer than a command waits for an answer."""
    asyncio.run(_worker.start())


def keep_solver(app: FastAPI) -> None:
    """Let a running application plan in the process that all of them share."""
    app.state.parts = replace(app.state.parts, solver=KeptSolver())
