"""Contexts: named control planes with a token file and a project each, kept in a file as `kubectl config` keeps them.

current-context: production
contexts:
  production: {url: https://plimsoll.example.com, token-file: /etc/plimsoll/production.token, project: search}
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.cli.common.errors import CliError

MAX_BYTES = 1024 * 1024
"""Thousands of contexts; a larger file is another one."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}")
KEYS = {"url": "url", "token-file": "token_file", "project": "project"}
"""Keys in the file, and the fields that they fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedContext:
    """Where one control plane is, and as whom it is asked; None: not said."""

    url: str | None = None
    token_file: str | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFile:
    """What the file holds."""

    current: str | None = None
    contexts: Mapping[str, NamedContext] = field(default_factory=dict)

    def find(self, name: str) -> NamedContext:
        """The context of that name. Raises CliError."""
        if name in self.contexts:
            return self.contexts[name]
        known = ", ".join(sorted(self.contexts)) or "none"
        raise CliError(
            f"there is no context {name!r}; there are: {known}",
            hint=f"`plimsoll config set-context {name} --url URL` creates it",
        )


def load_contexts(path: Path) -> ContextFile:
    """The contexts in the file; none where there is no file. Raises CliError."""
    # Most people have one control plane and no such file, and need no parser for it.
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        # Also in a folder that this user may not look into, such as another user's home.
        if not os.path.exists(path):  # noqa: PTH110
            return ContextFile()
        raise CliError(
            f"cannot read the contexts in {path}: {error.strerror}"
        ) from error
    if len(content) > MAX_BYTES:
        raise CliError(f"{path} is too large for a file of contexts")
    import yaml

    try:
        document = yaml.safe_load(content)
    except yaml.YAMLError as error:
        problem = str(error).replace("\n", " ")
        raise CliError(f"{path} is not YAML: {problem}") from error
    return _parse(document or {}, path)


def _parse(document: object, path: Path) -> ContextFile:
    contexts = document.get("contexts") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(contexts or {}, dict):
        raise _unreadable(path, "it has no mapping `contexts`")
    current = document.get("current-context")
    if current is not None and not isinstance(current, str):
        raise _unreadable(path, "current-context is not a name")
    return ContextFile(
        current=current,
        contexts={
            str(name): _parse_one(str(name), entry, path)
            for name, entry in (contexts or {}).items()
        },
    )


def _parse_one(name: str, entry: object, path: Path) -> NamedContext:
    place = f"contexts.{name}"
    if not isinstance(entry, dict):
        raise _unreadable(path, f"{place} is not a mapping")
    if unknown := [str(key) for key in entry if key not in KEYS]:
        raise _unreadable(
            path, f"{place} has {', '.join(unknown)}; it takes {', '.join(KEYS)}"
        )
    for key, value in entry.items():
        if value is not None and not isinstance(value, str):
            raise _unreadable(path, f"{place}.{key} is not text")
    return NamedContext(**{KEYS[key]: value for key, value in entry.items()})


def _unreadable(path: Path, problem: str) -> CliError:
    return CliError(
        f"cannot use the contexts in {path}: {problem}",
        hint="fix the file, or delete it and use `plimsoll config set-context`",
    )


def save_contexts(path: Path, contexts: ContextFile) -> None:
    """Write the file again, whole or not at all. Raises CliError."""
    import yaml

    entries = {
        name: {
            key: value
            for key, name_of in KEYS.items()
            if (value := getattr(entry, name_of)) is not None
        }
        for name, entry in sorted(contexts.contexts.items())
    }
    document = {"current-context": contexts.current, "contexts": entries}
    # Replaced in one step: a command that reads meanwhile finds the old file or the new one.
    written = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        written.replace(path)
    except OSError as error:
        written.unlink(missing_ok=True)
        raise CliError(
            f"cannot write the contexts to {path}: {error.strerror}"
        ) from error
