"""What a command finds around itself: environment variables, where the control plane is, the token, and time.

Precedence: command-line flags, then environment variables, then files (the context in use, then the saved token), then
defaults.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from app.base.token_file import write_token
from app.cli.common.contexts import ContextFile, NamedContext, load_contexts
from app.cli.common.errors import CliError

if TYPE_CHECKING:
    import httpx2
    import typer

DEFAULT_URL = "http://127.0.0.1:8080"
URL_VARIABLE = "PLIMSOLL_URL"
TOKEN_VARIABLE = "PLIMSOLL_TOKEN"
TOKEN_FILE_VARIABLE = "PLIMSOLL_TOKEN_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A value and where it came from, for `config show` and error messages."""

    value: str | None
    origin: str


# No slots: `contexts` is kept in the instance's dictionary.
@dataclass(frozen=True, kw_only=True)
class CliContext:
    """Everything that a command takes from outside its own arguments."""

    environment: Mapping[str, str]
    home: Path
    transport: "httpx2.BaseTransport | None" = None
    """None = real HTTP."""
    sleep: Callable[[float], None] = time.sleep
    monotonic_s: Callable[[], float] = time.monotonic
    url_flag: str | None = None
    token_file_flag: Path | None = None
    context_flag: str | None = None

    @classmethod
    def of_process(cls) -> "CliContext":
        """Those of this process."""
        return cls(environment=os.environ, home=_home())

    def with_flags(
        self, *, url: str | None, token_file: Path | None, context: str | None
    ) -> "CliContext":
        """The same, with what the command line says."""
        # Tests pass a context of their own, which the flags must not replace.
        return replace(
            self, url_flag=url, token_file_flag=token_file, context_flag=context
        )

    def is_terminal(self) -> bool:
        """Whether a person reads stdout."""
        return sys.stdout.isatty()

    def url(self) -> Sourced:
        """Address of the control plane's API."""
        if self.url_flag is not None:
            return Sourced(value=self.url_flag, origin="flag --url")
        if self.context_flag is not None and (url := self.named_context().url):
            return Sourced(value=url, origin=f"flag --context {self.context_flag}")
        if self.environment.get(URL_VARIABLE):
            return Sourced(
                value=self.environment[URL_VARIABLE],
                origin=f"environment {URL_VARIABLE}",
            )
        if url := self.named_context().url:
            return Sourced(value=url, origin=f"context {self.context_name().value}")
        return Sourced(value=DEFAULT_URL, origin="default")

    def token(self) -> Sourced:
        """The bearer token, or None with the places that were searched. Raises CliError for an unreadable file."""
        if self.token_file_flag is not None:
            return Sourced(
                value=_read_token(self.token_file_flag),
                origin=f"flag --token-file {self.token_file_flag}",
            )
        if self.context_flag is not None and self.named_context().token_file:
            return self._token_of_context()
        # An empty variable counts as none: `PLIMSOLL_TOKEN= plimsoll ...` takes it away for one command.
        if self.environment.get(TOKEN_VARIABLE):
            return Sourced(
                value=self.environment[TOKEN_VARIABLE],
                origin=f"environment {TOKEN_VARIABLE}",
            )
        if self.environment.get(TOKEN_FILE_VARIABLE):
            path = Path(self.environment[TOKEN_FILE_VARIABLE])
            return Sourced(
                value=_read_token(path),
                origin=f"environment {TOKEN_FILE_VARIABLE}, {path}",
            )
        # Only to its own address: a token of production is not for whatever `--url` names.
        if self._is_url_of_context() and self.named_context().token_file:
            return self._token_of_context()
        path = self.saved_token_path()
        # Unlike a path's own method, this takes a folder of another user for none.
        if os.path.exists(path):  # noqa: PTH110
            return Sourced(value=_read_token(path), origin=f"file {path}")
        return Sourced(value=None, origin=f"no {TOKEN_VARIABLE}, no {path}")

    def _is_url_of_context(self) -> bool:
        is_given = self.url_flag is not None or self.environment.get(URL_VARIABLE)
        return not is_given and self.named_context().url is not None

    def _token_of_context(self) -> Sourced:
        path = Path(self.named_context().token_file or "")
        origin = f"context {self.context_name().value}, {path}"
        return Sourced(value=_read_token(path), origin=origin)

    def context_name(self) -> Sourced:
        """The context in use; None where there is none."""
        if self.context_flag is not None:
            return Sourced(value=self.context_flag, origin="flag --context")
        return Sourced(
            value=self.contexts.current, origin=f"file {self.contexts_path()}"
        )

    def named_context(self) -> NamedContext:
        """What the context in use says; nothing where there is none. Raises CliError for a name that is not there."""
        name = self.context_name().value
        return NamedContext() if name is None else self.contexts.find(name)

    @cached_property
    def contexts(self) -> ContextFile:
        """What the file of contexts holds; parsed once, though a command asks several times. Raises CliError."""
        return load_contexts(self.contexts_path())

    def contexts_path(self) -> Path:
        """Where `plimsoll config set-context` keeps contexts."""
        return self._config_dir() / "contexts.yaml"

    def saved_token_path(self) -> Path:
        """Where `plimsoll up` and `plimsoll token create --save` leave the user's token."""
        return self._config_dir() / "token"

    def _config_dir(self) -> Path:
        # The XDG base directory specification; empty counts as unset.
        base = self.environment.get("XDG_CONFIG_HOME")
        return (Path(base) if base else self.home / ".config") / "plimsoll"


def _home() -> Path:
    """The user's folder; the root directory for users without one, as platforms make them up for containers."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def cli_context(context: "typer.Context") -> CliContext:
    """Those that the command line was started with."""
    found = context.find_object(CliContext)
    assert found is not None  # `app.cli.main.run` put it there.
    return found


def save_token(path: Path, token: str) -> None:
    """Keep a token for later commands, readable by this user only, replacing the one before. Raises CliError."""
    try:
        write_token(path, token)
    except OSError as error:
        raise CliError(f"cannot write the token to {path}: {error.strerror}") from error


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read the token file {path}: {error}") from error
    # Otherwise every command would fail as unauthorised, which does not lead to the file.
    if not token:
        raise CliError(
            f"the token file {path} is empty",
            hint="create a token with `plimsoll token create`",
        )
    return token
