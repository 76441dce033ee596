"""Runtime templates: which programs may run as replicas or tasks on this node, and how they are talked to.

An operator writes them into one TOML file on the node. The control plane names a network, a template at most, and the
parameters of a replica or task; never a word of a command line. A template is checked when it is read, its parameters
when they are filled in; a command is a list of words and meets no shell. `agents.processes.template_file` reads the
file.

    Templates.find(network, template="")          -> Template
    Templates.find_task(network, kind)            -> Template of server "task"
    Template.fill(Parameters)                     -> Filled(command, environment)

Placeholders in words, values of the environment, paths and bodies:

    {port} {grpc_port} {metrics_port}   free ports of this machine, as many as the template names
    {host}                              where its server must listen: 127.0.0.1, or all of a Pod's addresses
    {service} {network}                 names, checked against NAME
    {batch} {sm_percent} {memory_mib}   numbers; memory rounded down
    {memory_fraction}                   memory_mib of the GPU's, for servers that ask for a share of it
    {tp} {max_num_batched_tokens} {max_num_seqs} {max_model_len} {precision}
                                        of language models: GPUs, and how the engine is started; precision may be auto
    {directory}                         the replica's own directory, where `files` of the template are written first

A task has no service and no further ports, and {port} only if its program listens for `agents.trainer.swap`. Instead it
has {task}, its name; {kind}, training or offline; {iterations}, in all; {done_iterations}, with which it may begin.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import msgspec

from agents.base.device import LaunchFailed
from agents.base.protocol import EngineCommand

Server: TypeAlias = Literal["worker", "triton", "vllm", "mlserver", "task"]
BatchChange: TypeAlias = Literal["live", "reload", "restart"]
DrainMethod: TypeAlias = Literal["router", "server"]

BUILT_IN = "worker"
BUILT_IN_ENGINE = "engine"
BUILT_IN_TASK = "trainer"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What a service, a network or a template may be called: no blank, no slash, no leading dash, so neither an option nor
a way out of a folder."""

SLEEP_OPTION, SLEEP_VARIABLE = "--enable-sleep-mode", "VLLM_SERVER_DEV_MODE"
"""What vLLM offers sleep by."""
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
PORTS = ("port", "grpc_port", "metrics_port")
ENGINE = (
    "tp",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "precision",
)
"""Placeholders of language models."""
PASSED_ON = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
)
"""Variables of the agent that every worker gets; its token is not among them."""
_OF_DRIVER = ("CUDA_", "NVIDIA_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What one replica or task fills into a template."""

    service: str = ""
    network: str
    batch: int
    sm_percent: float
    memory_mib: float
    gpu_memory_mib: float = 0.0
    """The entire GPU's memory; 0 = not known, then `{memory_fraction}` is refused."""
    ports: tuple[int, ...] = ()
    """As many as `Template.ports` names, in that order."""
    host: str = "127.0.0.1"
    """Where its server must listen."""
    directory: str = ""
    engine: EngineCommand | None = None
    """Only language models have one."""
    task: str = ""
    """Its name, as the service of a replica."""
    kind: str = ""
    iterations: int = 0
    done_iterations: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Requests that a replica answers before it takes traffic."""

    path: str
    body: str
    requests: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A template with its parameters."""

    command: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, str]
    """Content by the name of a file in the replica's directory."""
    served_as: str
    readiness_path: str
    warm_up: WarmUp | None
    progress_file: str = ""
    ports: tuple[int, ...] = ()
    """Its server's own first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVolume:
    """A folder that a Pod gets besides its own."""

    path: str
    """In the Pod."""
    claim: str = ""
    """The PersistentVolumeClaim that has it; empty: it is the node's."""
    host_path: str = ""
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """What a template says for Kubernetes; as a process it runs without."""

    image: str = ""
    """Empty: the agent's own."""
    pull: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    resources: dict[str, str] = field(
        default_factory=lambda: {"cpu": "250m", "memory": "2Gi"}
    )
    """What it requests; all but CPU is its limit as well."""
    volumes: tuple[PodVolume, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One program that may run as a replica, or with server `task` as a task."""

    name: str
    command: tuple[str, ...]
    server: Server = "worker"
    """How it is talked to: the adapter."""
    environment: dict[str, str] = field(default_factory=dict)
    pass_environment: tuple[str, ...] = ()
    """Further variables of the agent that it gets, by name."""
    files: dict[str, str] = field(default_factory=dict)
    served_as: str = "{service}"
    """As what the server knows what it serves; requests come under the service's name."""
    readiness_path: str = ""
    """Empty: the server's own."""
    warm_up: WarmUp | None = None
    batch_change: BatchChange = "live"
    drain: DrainMethod = "router"
    """`router`: the router stops sending, that is all; `server`: it is told as well, when it is stopped."""
    start_limit_s: float = 120.0
    """From its start to readiness, warm-up included."""
    drain_limit_s: float = 30.0
    """From SIGTERM to harder ways."""
    hung_after_s: float = 120.0
    """A ready replica, or a task, whose server answers no question for so long has hung."""
    progress_file: str = ""
    """Task: where its program says {"done_iterations": N} of what it has kept; empty: it writes no such file."""
    pod: PodTemplate = PodTemplate()

    @property
    def is_task(self) -> bool:
        """Whether tasks run by it, and no replicas."""
        return self.server == "task"

    @property
    def can_sleep(self) -> bool:
        """Whether its server gives the GPU's memory back when it is asked to."""
        # Without the variable it cannot be asked to.
        is_set = self.environment.get(SLEEP_VARIABLE) == "1"
        return self.server == "vllm" and SLEEP_OPTION in self.command and is_set

    @property
    def ports(self) -> tuple[str, ...]:
        """Names of the ports that it needs, `port` first."""
        used = {name for text in texts_of(self) for name in PLACEHOLDER.findall(text)}
        return tuple(name for name in PORTS if name in used)

    @property
    def digest(self) -> str:
        """SHA-256 of command, environment and files as they stand in the template."""
        parts: tuple[object, ...] = (
            self.command,
            sorted(self.environment.items()),
            sorted(self.files.items()),
        )
        # Where nothing is said the digest is that of earlier releases, whose workers are then not outdated.
        if self.pod != PodTemplate():
            parts += (self.pod,)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()

    def fill(self, parameters: Parameters) -> Filled:
        """Command, environment and files of one replica or task. Raises LaunchFailed for a bad parameter."""
        values = _values(self, parameters)
        return Filled(
            command=tuple(_put(word, values) for word in self.command),
            environment={
                name: _put(text, values) for name, text in self.environment.items()
            },
            files={name: _put(text, values) for name, text in self.files.items()},
            served_as="" if self.is_task else _put(self.served_as, values),
            readiness_path=_put(self.readiness_path, values),
            ports=parameters.ports,
            warm_up=replace(
                warm_up,
                path=_put(warm_up.path, values),
                body=_put(warm_up.body, values),
            )
            if (warm_up := self.warm_up)
            else None,
            progress_file=_put(self.progress_file, values),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """The node's allow-list."""

    by_name: dict[str, Template]
    default: str = BUILT_IN
    """For networks that are not named; empty: they are refused."""
    networks: dict[str, str] = field(default_factory=dict)
    """Template by network."""
    tasks: dict[str, str] = field(default_factory=dict)
    """Template of tasks by network, by kind, or under `default`."""

    def find(
        self, network: str, template: str = "", *, is_model: bool = False
    ) -> Template:
        """The template of a network, or the one asked for. `is_model`: it is a language model, which our own worker
        cannot serve. Raises LaunchFailed where the node does not allow it."""
        default = self.default
        if is_model and default == BUILT_IN:
            default = BUILT_IN_ENGINE
        name = template or self.networks.get(network, default)
        if not name:
            raise LaunchFailed(
                f"network {network} has no runtime template on this node; add it to [networks]"
            )
        if name not in self.by_name:
            raise LaunchFailed(
                f"template {name!r} is not allowed on this node; it has {', '.join(sorted(self.by_name))}"
            )
        if self.by_name[name].is_task:
            raise LaunchFailed(f"template {name!r} is for tasks, not for replicas")
        return self.by_name[name]

    def find_task(self, network: str, kind: str) -> Template:
        """The template of a task. Raises LaunchFailed where the node does not allow it."""
        tasks = {"default": BUILT_IN_TASK, **self.tasks}
        name = tasks.get(network, tasks.get(kind, tasks["default"]))
        if not name or name not in self.by_name:
            raise LaunchFailed(
                f"{kind} of network {network} has no template on this node; add it to [tasks]"
            )
        return self.by_name[name]


def tool_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the agent's environment that NVIDIA's own programs get; a list, as for workers."""
    return {
        name: value
        for name, value in environment.items()
        if name in PASSED_ON or name.startswith(_OF_DRIVER)
    }


def without_passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an agent that means nothing by those which every process gets; templates may name others."""
    return {name: text for name, text in environment.items() if name not in PASSED_ON}


def texts_of(template: Template) -> tuple[str, ...]:
    """Everything of a template that may hold placeholders."""
    warm_up = (template.warm_up.body,) if template.warm_up else ()
    inner = (*template.environment.values(), *template.files.values())
    served_as = () if template.is_task else (template.served_as,)
    return (
        *template.command,
        *inner,
        *served_as,
        *paths_of(template),
        *warm_up,
        template.progress_file,
    )


def paths_of(template: Template) -> tuple[str, ...]:
    """Where its server is asked."""
    return (
        template.readiness_path,
        *((template.warm_up.path,) if template.warm_up else ()),
    )


def _values(template: Template, given: Parameters) -> dict[str, str]:
    """The parameters as texts; each is checked, whether the template names it or not."""
    part = ("task", given.task) if template.is_task else ("service", given.service)
    for what, text in (part, ("network", given.network)):
        if not NAME.fullmatch(text):
            raise LaunchFailed(
                f"{what} {text[:140]!r} cannot be a parameter: it must match {NAME.pattern}"
            )
    if not 1 <= given.batch <= 4096:
        raise LaunchFailed(f"batch {given.batch} must be 1 to 4096")
    if not 0.0 < given.sm_percent <= 100.0:
        raise LaunchFailed(
            f"sm_percent {given.sm_percent} must be above 0 and at most 100"
        )
    if not 0.0 <= given.memory_mib <= 1e9:
        raise LaunchFailed(f"memory_mib {given.memory_mib} must be 0 to 1e9")
    if len(given.ports) != len(template.ports) or not all(
        1 <= port <= 65535 for port in given.ports
    ):
        raise LaunchFailed(
            f"template {template.name} needs {len(template.ports)} ports, not {given.ports}"
        )
    values = {
        name: str(port) for name, port in zip(template.ports, given.ports, strict=True)
    }
    values |= {
        "service": given.service,
        "network": given.network,
        "batch": str(given.batch),
    }
    values |= {
        "sm_percent": f"{given.sm_percent:.12g}",
        "memory_mib": str(int(given.memory_mib)),
    }
    values |= {"directory": given.directory, "host": given.host}
    values |= {
        "task": given.task,
        "kind": given.kind,
        "iterations": str(given.iterations),
    }
    values["done_iterations"] = str(int(given.done_iterations))
    if given.engine is not None:
        engine = given.engine
        figures = (
            len(engine.gpus),
            engine.max_num_batched_tokens,
            engine.max_num_seqs,
            engine.max_model_len,
            engine.precision or "auto",
        )
        values |= zip(ENGINE, map(str, figures), strict=True)
    if 0.0 < given.memory_mib <= given.gpu_memory_mib:
        # Rounded down: a server that takes a ten-thousandth more than its share does not start.
        values["memory_fraction"] = (
            f"{math.floor(1e4 * given.memory_mib / given.gpu_memory_mib) / 1e4:.4f}"
        )
    return values


def _put(text: str, values: Mapping[str, str]) -> str:
    """The text with its placeholders filled, once: a value is never looked through again."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise LaunchFailed(
                f"{match[0]} is unknown here: what it stands for is missing, as the memory of the replica, task or "
                "GPU, or the engine, which services of kind llm alone have"
            )
        return values[match[1]]

    return PLACEHOLDER.sub(value, text)
