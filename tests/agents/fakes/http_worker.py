"""A worker that misbehaves as told: a single-threaded HTTP server that starts in 30 ms.

It answers as our own worker does where the supervisor asks, and to any POST with 200. `/status` tells what it was
asked.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

STARTED_S = time.monotonic()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ready-file", help="not ready while it is missing")
    parser.add_argument(
        "--exit-after-s", type=float, help="end by itself, with --exit-code"
    )
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument(
        "--die-by", type=int, help="with --exit-after-s: by this signal"
    )
    parser.add_argument("--hang", action="store_true", help="ignore SIGTERM")
    parser.add_argument(
        "--child", action="store_true", help="start a child that ignores SIGTERM"
    )
    parser.add_argument(
        "--own-session", action="store_true", help="the child has a session of its own"
    )
    parser.add_argument("--say", default="", help="written to stderr at the start")
    parser.add_argument("--sm-count", type=int, default=66)
    parser.add_argument("--no-listen", action="store_true", help="never listen")
    parser.add_argument(
        "--mute-file", help="take connections and answer none while it is there"
    )
    parser.add_argument(
        "--refuse", default="", help="answer requests with this path by 500"
    )
    return parser


class Server:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seen: list[str] = []
        self.held: list[socket.socket] = []

    def serve(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not self.options.no_listen:
            listener.bind(("127.0.0.1", self.options.port))
            listener.listen(64)
        listener.settimeout(0.02)
        while True:
            self._end_when_due()
            if self.options.no_listen:
                time.sleep(0.02)
                continue
            with contextlib.suppress(TimeoutError, ConnectionError):
                connection, _ = listener.accept()
                if is_there(self.options.mute_file):
                    self.held = [*self.held[-50:], connection]
                    continue
                with connection:
                    connection.settimeout(2.0)
                    text = self._answer(connection)
                    connection.sendall(text)

    def _end_when_due(self) -> None:
        after_s = self.options.exit_after_s
        if after_s is not None and time.monotonic() - STARTED_S >= after_s:
            if self.options.die_by:
                signal.signal(
                    self.options.die_by, signal.SIG_DFL
                ) if self.options.die_by != signal.SIGKILL else None
                os.kill(os.getpid(), self.options.die_by)
            sys.stdout.flush()
            os._exit(self.options.exit_code)

    def _answer(self, connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive(connection)
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        lengths = [
            int(line.split(":")[1])
            for line in lines
            if line.lower().startswith("content-length:")
        ]
        while lengths and len(body) < lengths[0]:
            body += self._receive(connection)
        method, path, _ = lines[0].split(" ")
        status, answer = self._handle(method, path, body.decode())
        text = json.dumps(answer).encode()
        return (
            b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % (status, len(text))
            + text
        )

    def _receive(self, connection: socket.socket) -> bytes:
        """Raises ConnectionError when the other side, perhaps killed, says no more."""
        part = connection.recv(65536)
        if not part:
            raise ConnectionAbortedError
        return part

    def _handle(
        self, method: str, path: str, body: str
    ) -> tuple[int, dict[str, object]]:
        if method != "GET":
            self.seen.append(f"{method} {path} {body}".strip())
        if self.options.refuse and path == self.options.refuse:
            return 500, {"detail": "refused"}
        if path == "/v2/health/ready":
            file = self.options.ready_file
            return (200 if file is None or is_there(file) else 503), {}
        environment = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("CUDA", "FAKE", "PLIMSOLL"))
        }
        return 200, {
            "sm_count": self.options.sm_count,
            "seen": self.seen,
            "environment": environment,
            "requests": 7,
        }


def is_there(file: str | None) -> bool:
    return file is not None and os.access(file, os.F_OK)


def main() -> None:
    options = make_parser().parse_args()
    if options.hang:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.child:
        code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        # The child must not hold our listening socket or log open in a way that matters: it is started first.
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            start_new_session=options.own_session,
        )
    if options.say:
        sys.stderr.write(options.say + "\n")
    Server(options).serve()


if __name__ == "__main__":
    main()
