"""The node's file of runtime templates: read, checked, and put next to the built-in ones.

load_templates(path | None) -> Templates      the built-in templates and those of the file
"""

import math
import re
import stat
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import msgspec

from agents.base.device import DeviceError
from agents.processes.templates import (
    BUILT_IN,
    BUILT_IN_ENGINE,
    BUILT_IN_TASK,
    ENGINE,
    NAME,
    PLACEHOLDER,
    PORTS,
    BatchChange,
    Server,
    Template,
    Templates,
    paths_of,
    texts_of,
)

MAX_FILE = 256 * 1024
_COMMON = (
    "port",
    "host",
    "network",
    "batch",
    "sm_percent",
    "memory_mib",
    "memory_fraction",
    "directory",
)
_PLACEHOLDERS = frozenset((*_COMMON, *PORTS, *ENGINE, "service"))
_TASK_PLACEHOLDERS = frozenset(
    (*_COMMON, "task", "kind", "iterations", "done_iterations")
)
_OF_REPLICAS = frozenset(
    ("served_as", "readiness_path", "warm_up", "batch_change", "drain")
)
"""Keys that do not apply to a task."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = re.compile(r"CUDA_MPS_|CUDA_VISIBLE_DEVICES$|PLIMSOLL_")
"""Variables that the agent sets for each replica, or keeps to itself."""
BATCH_CHANGES: dict[Server, tuple[BatchChange, ...]] = {
    "worker": ("live", "restart"),
    "triton": ("reload", "restart"),
    "vllm": ("restart",),
    "mlserver": ("restart", "reload"),
}
"""How each server can be given another batch size; the first is the usual way."""
DRAINABLE: tuple[Server, ...] = ("worker", "triton")
"""Servers that can be told to take nothing more."""


class BadTemplate(DeviceError, ValueError):
    """The template file cannot be used: the agent must not start with it."""


def built_in() -> Template:
    """Our own worker with the timed engine, so that a node serves something without any file."""
    options = "--service {service} --host {host} --port {port} --batch {batch} --memory-mib {memory_mib} --drain-s 10"
    return Template(
        name=BUILT_IN,
        command=(
            sys.executable,
            "-m",
            "agents.serving",
            "--engine",
            "timed",
            *options.split(),
        ),
        start_limit_s=60.0,
        drain_limit_s=15.0,
    )


def built_in_engine() -> Template:
    """The stand-in of a language model's engine, which needs no GPU and answers with nothing but time."""
    options = "--served-model-name {service} --host {host} --port {port}"
    limits = "--max-num-batched-tokens {max_num_batched_tokens} --max-num-seqs {max_num_seqs}"
    return Template(
        name=BUILT_IN_ENGINE,
        server="vllm",
        command=(
            sys.executable,
            "-m",
            "agents.llm",
            *options.split(),
            *limits.split(),
        ),
        batch_change="restart",
        start_limit_s=60.0,
    )


def built_in_task() -> Template:
    """Our own trainer with the timed engine, which needs no GPU."""
    options = "--task {task} --kind {kind} --network {network} --batch {batch} --iterations {iterations}"
    listens = "--host {host} --port {port}"
    progress = "--done-iterations {done_iterations} --checkpoint {directory}/kept --checkpoint-s 1"
    return Template(
        name=BUILT_IN_TASK,
        server="task",
        command=(
            sys.executable,
            "-m",
            "agents.trainer.trainer",
            *options.split(),
            *listens.split(),
            *progress.split(),
        ),
        progress_file="{directory}/kept",
        start_limit_s=60.0,
        drain_limit_s=15.0,
    )


def load_templates(path: Path | None) -> Templates:
    """The built-in templates and those of a file, which may replace them. Raises BadTemplate."""
    templates = {
        own.name: own for own in (built_in(), built_in_engine(), built_in_task())
    }
    if path is None:
        return Templates(by_name=templates)
    document = _read(path)
    if unknown := set(document) - {"default", "networks", "tasks", "templates"}:
        raise BadTemplate(
            f"{path}: unknown {sorted(unknown)}; there are default, networks, tasks and templates"
        )
    for name, table in _table(
        document.get("templates", {}), f"{path}: templates"
    ).items():
        templates[name] = _template(name, table, f"{path}: templates.{name}")
    networks = {
        name: str(text)
        for name, text in _table(
            document.get("networks", {}), f"{path}: networks"
        ).items()
    }
    tasks = {
        name: str(text)
        for name, text in _table(document.get("tasks", {}), f"{path}: tasks").items()
    }
    default = str(document.get("default", BUILT_IN))
    for wanted in (*networks.values(), *((default,) if default else ())):
        _require(wanted, templates, path, is_task=False)
    # An empty name forbids the tasks of that network, so there is nothing to look up.
    for wanted in filter(None, tasks.values()):
        _require(wanted, templates, path, is_task=True)
    return Templates(by_name=templates, default=default, networks=networks, tasks=tasks)


def _require(
    wanted: str, templates: Mapping[str, Template], path: Path, *, is_task: bool
) -> None:
    if wanted not in templates:
        raise BadTemplate(
            f"{path}: there is no template {wanted!r}; there are {', '.join(sorted(templates))}"
        )
    if templates[wanted].is_task != is_task:
        raise BadTemplate(
            f"{path}: template {wanted!r}: [tasks] names templates with server task, nothing else does"
        )


def _read(path: Path) -> dict[str, object]:
    """The file as TOML; only its owner and group may write it, since it says what the agent runs."""
    try:
        facts = path.stat()
        # One byte more than is allowed shows that the file is too long.
        text = path.read_bytes()[: MAX_FILE + 1]
    except OSError as error:
        raise BadTemplate(f"{path} cannot be read: {error}") from error
    if facts.st_mode & stat.S_IWOTH:
        raise BadTemplate(
            f"{path} is writable by everybody, who could then run anything here: chmod o-w {path}"
        )
    if len(text) > MAX_FILE:
        raise BadTemplate(f"{path} has more than {MAX_FILE} bytes")
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadTemplate(f"{path} is not TOML: {error}") from error


def _template(name: str, table: object, where: str) -> Template:
    if not NAME.fullmatch(name):
        raise BadTemplate(f"{where}: a template's name must match {NAME.pattern}")
    try:
        read = msgspec.convert(
            {**_with_defaults(_table(table, where)), "name": name}, Template
        )
    except msgspec.ValidationError as error:
        raise BadTemplate(f"{where}: {error}") from error
    known = {each.name for each in fields(Template)} - {"name"}
    # A misspelt key would otherwise be ignored, and its default be in force.
    if unknown := set(_table(table, where)) - known:
        raise BadTemplate(
            f"{where}: unknown {sorted(unknown)}; there are {', '.join(sorted(known))}"
        )
    if read.is_task and (idle := set(_table(table, where)) & _OF_REPLICAS):
        raise BadTemplate(f"{where}: {sorted(idle)} do not apply to a task")
    if objection := _objection(read):
        raise BadTemplate(f"{where}: {objection}")
    return read


def _with_defaults(table: dict[str, object]) -> dict[str, object]:
    ways = [
        ways[0]
        for server, ways in BATCH_CHANGES.items()
        if server == table.get("server", "worker")
    ]
    return {"batch_change": ways[0], **table} if ways else table


def _objection(template: Template) -> str:
    """What is wrong with a template; empty = nothing."""
    # The program must not depend on a command that comes over the wire.
    if not template.command or PLACEHOLDER.search(template.command[0]):
        return "command must begin with the program itself, without a placeholder"
    if (
        not template.is_task
        and template.batch_change not in BATCH_CHANGES[template.server]
    ):
        ways = " or ".join(BATCH_CHANGES[template.server])
        return f"batch_change of {template.server} must be {ways}, not {template.batch_change}"
    if any("\0" in text for text in texts_of(template)):
        return "no word may contain a NUL"
    placeholders = _TASK_PLACEHOLDERS if template.is_task else _PLACEHOLDERS
    unknown = {
        name for text in texts_of(template) for name in PLACEHOLDER.findall(text)
    } - placeholders
    if unknown:
        return f"unknown placeholder {sorted(unknown)}; there are {', '.join(sorted(placeholders))}"
    if template.drain == "server" and template.server not in DRAINABLE:
        return f"drain of {template.server} must be router: it cannot be told to drain"
    if template.progress_file and not (
        template.is_task and template.progress_file.startswith(("/", "{directory}/"))
    ):
        return "progress_file is a task's, and begins with / or {directory}/"
    if "port" not in template.ports and not template.is_task:
        return "{port} must stand in the command, the environment or a file: the agent chooses it"
    for volume in template.pod.volumes:
        sources = (volume.claim, volume.host_path)
        if not volume.path.startswith("/") or sum(map(bool, sources)) != 1:
            return "each of pod.volumes has a path that begins with /, and either a claim or a host_path"
    # Variables of MPS and CUDA decide the share, which is the plan's alone.
    for name in (*template.environment, *template.pass_environment):
        if not _VARIABLE.fullmatch(name) or _OURS.match(name):
            return f"variable {name!r} cannot be set here: it is not a valid name, or it is the agent's own"
    # A name with a slash could lie outside the replica's directory.
    if any(not NAME.fullmatch(name) for name in template.files):
        return f"files must be named by {NAME.pattern}: they lie in the replica's own directory"
    if any(path and not path.startswith("/") for path in paths_of(template)):
        return "paths begin with /"
    if template.warm_up is not None and not 1 <= template.warm_up.requests <= 1000:
        return "warm_up.requests must be 1 to 1000"
    limits = (template.start_limit_s, template.drain_limit_s, template.hung_after_s)
    if not all(math.isfinite(limit) and 0.0 < limit <= 3600.0 for limit in limits):
        return "start_limit_s, drain_limit_s and hung_after_s must be above 0 and at most 3600"
    return ""


def _table(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BadTemplate(f"{where} must be a table, not {value!r}")
    return value
