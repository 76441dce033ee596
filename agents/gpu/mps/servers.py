"""The servers of one GPU's MPS daemon and their clients, each method one question to the daemon or a few."""

from agents.base.device import DeviceError, NotSupported
from agents.gpu.mps import answers
from agents.gpu.mps.answers import ServerState
from agents.gpu.mps.control import Control

LIST_SERVERS = "get_server_list"


class MpsServers:
    """What a running daemon has started. Every method raises NoDaemon where none runs, and DeviceError."""

    def __init__(self, control: Control, gpu_uuid: str) -> None:
        self._control = control
        self._gpu_uuid = gpu_uuid
        self.only = 0
        """The one that was there when all were listed last; 0 = there was none, or several."""

    async def pids(self) -> tuple[int, ...]:
        """PIDs of the servers."""
        found = answers.pids(await self._control.ask(LIST_SERVERS))
        self.only = found[0] if len(found) == 1 else 0
        return found

    async def clients(self) -> dict[int, int]:
        """Servers by the PIDs of their clients, ascending."""
        found: dict[int, int] = {}
        for server in await self.pids():
            listed = await self._control.ask(f"get_client_list {server}")
            found |= dict.fromkeys(answers.pids(listed), server)
        return dict(sorted(found.items()))

    async def terminate(self, server: int, pid: int) -> bool:
        """Whether the client has nothing on the GPU any more."""
        answer = await self._control.ask(f"terminate_client {server} {pid}")
        # One that left by itself meanwhile is refused, and has nothing on the GPU either.
        return answers.is_zero(answer) or pid not in await self.clients()

    async def worst_of(self, servers: tuple[int, ...]) -> ServerState:
        """The worst state among them."""
        return answers.worst(tuple([await self.state_of(each) for each in servers]))

    async def state_of(self, server: int) -> ServerState:
        """The state of one of them; "unknown" where the release of MPS does not tell it."""
        try:
            return answers.state(await self._control.ask(f"get_server_status {server}"))
        except NotSupported:
            return "unknown"

    async def give_all_percent(self, servers: tuple[int, ...]) -> None:
        """Set their own value to 100 %."""
        for server in servers:
            await self.set_percent(f"set_active_thread_percentage {server} 100")

    async def set_percent(self, command: str) -> None:
        """Carry out a command that sets some value to 100 %."""
        answer = await self._control.ask(command)
        if not answers.is_gone(answer) and answers.percent(answer) != 100.0:
            raise DeviceError(
                f"the MPS daemon of GPU {self._gpu_uuid} answers {command!r} with {' / '.join(answer)!r}"
            )

    async def drop(self) -> None:
        """End the servers at once, which is safe without clients; the next client gets another."""
        for server in await self.pids():
            await self._control.ask(f"shutdown_server {server} -f")
