"""What the process of a simulation may do instead of simulating."""

import os
import signal
from multiprocessing.connection import Connection

from app.db.decisions.simulations import Reports

DONE = Reports(summary={"done": True}, html=b"page", json=None)


def answer(pipe: Connection, document: object, folder: object) -> None:
    """Tell how far it is, and finish."""
    pipe.send(0.25)
    pipe.send(DONE)


def hang(pipe: Connection, document: object, folder: object) -> None:
    """Tell how far it is, and no more for ever."""
    pipe.send(0.25)
    while True:
        signal.pause()


def be_killed(pipe: Connection, document: object, folder: object) -> None:
    """As the kernel does where memory is short, in the middle of a message."""
    os.write(pipe.fileno(), b"\x00\x00")
    os.kill(os.getpid(), signal.SIGKILL)


class DeadAtOnce:
    """Ends before it has taken its scenario, as where memory is short already."""

    def __setstate__(self, _state: object) -> None:
        os._exit(3)

    def __getstate__(self) -> dict[str, int]:
        return {"any": 1}

    def __call__(self, pipe: Connection, document: object, folder: object) -> None:
        """Is never reached."""
