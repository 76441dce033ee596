"""A node that answers for logs: the agent's own reader of them, without the processes that write them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from httpx2 import Response

from agents.base.protocol import LogAnswer, LogRequest
from agents.base.version import REPLY_FIELDS, TAKES_HEADER, takes
from agents.processes.node_logs import NodeLogs
from agents.processes.records import REPLICAS_FOLDER, log_path
from tests.integration.api_harness import Api, observation

NEW_AGENT = {TAKES_HEADER.replace("-", "_"): takes(REPLY_FIELDS)}
ASK_S = 0.05


class LoggingNode:
    """A node whose agent answers for logs, without the processes that write them."""

    def __init__(self, api: Api, name: str, state_dir: Path) -> None:
        self._api, self._name = api, name
        self._state_dir = state_dir
        self._logs = NodeLogs(state_dir)
        self._sequence = 0

    def write(
        self, name: str, content: bytes, *, folder: str = REPLICAS_FOLDER
    ) -> None:
        """What the process of a replica, or of a task in its own folder, writes."""
        path = log_path(self._state_dir / folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(content)

    def sync(self, **headers: str) -> list[LogRequest]:
        """What it is asked for."""
        self._sequence += 1
        answer = self._api.call(
            "POST",
            f"nodes/{self._name}/sync",
            observation(self._name, sequence=self._sequence),
            token=self._api.token_of(self._name),
            **headers,
        )
        assert answer.status_code == 200, answer.text
        # Without a request there is no field: older agents would refuse it.
        return msgspec.convert(answer.json().get("logs", []), list[LogRequest])

    def answer(self, request: LogRequest) -> Response:
        return self.send(request.id, self._logs.read(request))

    def send(self, request_id: str, answered: LogAnswer) -> Response:
        return self._api.call(
            "POST",
            f"nodes/{self._name}/logs/{request_id}",
            msgspec.to_builtins(answered),
            token=self._api.token_of(self._name),
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """It answers whatever it is asked, until the end."""
        over = threading.Event()

        def answer_all() -> None:
            while not over.wait(ASK_S):
                for request in self.sync(**NEW_AGENT):
                    self.answer(request)

        thread = threading.Thread(target=answer_all)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
