"""The registry of policies: named compositions of techniques that turn one Problem into one Plan.

To add a policy, state it in the `POLICIES` of a `spec.py` (`solvers.types.policy_spec`). Papers are found by looking
into `solvers/papers`: nothing else names them, and a folder that is taken away takes its policies with it.
"""

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Protocol, cast

from solvers.backfill.problem import FillProblem
from solvers.baselines import spec as baselines
from solvers.greedy import spec as greedy
from solvers.joint import spec as joint
from solvers.policies.governor_parameters import GOVERNOR_PARAMETERS
from solvers.types.errors import InvalidInput, UnknownPolicy
from solvers.types.jobs import JobScheduler
from solvers.types.parameters import (
    AS_BY_DEFAULT,
    PolicyParameters,
    Setting,
    read_parameters,
)
from solvers.types.plan import BoundGpu
from solvers.types.policy_spec import (
    PolicyModule,
    PolicySpec,
    PolicyTrainer,
    ProgramExporter,
)
from solvers.types.problem import Problem

_PAPERS = "solvers.papers"
_DEFAULT_FILL = "solvers.backfill.greedy"


class Fill(Protocol):
    """What the module of a fill offers."""

    def __call__(self, wanted: FillProblem) -> tuple[BoundGpu, ...]:
        """The bound plan's GPUs with their tasks, and idle ones that tasks were given, by id; who is nowhere waits.

        It may give replicas another batch, clock or SM percent; one whose SM percent changes has an empty id, since it
        is a new process. Raises InvalidInput for a replica without a service or row.
        """


def policies() -> tuple[str, ...]:
    """The names of all policies, sorted."""
    return tuple(sorted(_specs()))


def main_policies() -> tuple[str, ...]:
    """The names of whole systems to choose from, sorted; the others are baselines and variants."""
    return tuple(name for name in policies() if spec_of(name).is_main)


def spec_of(name: str) -> PolicySpec:
    """How the policy of that name is registered. Raises UnknownPolicy, which lists the names that exist."""
    if name not in _specs():
        raise UnknownPolicy(
            f"no policy is called {name!r}; there are {', '.join(policies())}"
        )
    return _specs()[name]


def policy(name: str) -> PolicyModule:
    """The policy of that name. Raises UnknownPolicy, which lists the names that exist."""
    # Imported when it is asked for: some policies load solvers that take seconds.
    return cast(PolicyModule, import_module(spec_of(name).module))


def refuse_slices(name: str, problem: Problem) -> None:
    """Raise InvalidInput where GPUs may be cut into slices and the policy of that name plans whole ones only."""
    cut = next((each.name for each in problem.gpu_types if each.slices), None)
    spec = _specs().get(name)
    if cut is None or (spec is not None and spec.plans_slices):
        return
    able = " or ".join(each for each in policies() if spec_of(each).plans_slices)
    words = f"policy {name} plans whole GPUs only, and {cut} may be cut into slices; {able} plans them"
    raise InvalidInput("gpu_types", words)


def parameters_of(name: str, stated: Mapping[str, Setting]) -> PolicyParameters:
    """The parameters of the policy, or governor, of that name with the stated values.

    Raises UnknownPolicy, InvalidInput.
    """
    kind = GOVERNOR_PARAMETERS.get(name) or spec_of(name).parameters
    return read_parameters(kind, stated)


def usable_parameters(
    name: str, stated: Mapping[str, Setting]
) -> tuple[PolicyParameters, tuple[str, ...]]:
    """The same, the defaults where a value is not allowed; and what the plan's report is to say of it."""
    if not stated:
        # A policy that is not registered has none, and simulations run some.
        return AS_BY_DEFAULT, ()
    try:
        parameters = parameters_of(name, stated)
    except InvalidInput as error:
        # It was right when it was written; but this version of the program may know other parameters than that one.
        return AS_BY_DEFAULT, (f"parameters ignored, the defaults are used: {error}",)
    changed = (f"{each} = {value}" for each, value in parameters.changed.items())
    return parameters, (f"parameters: {', '.join(changed) or 'the defaults'}",)


def fill_of(policy: str, stated: Mapping[str, Setting] = MappingProxyType({})) -> Fill:
    """The technique of the policy of that name with its parameters; the default one where it has none or is not
    registered."""
    # Without raising: a stored plan may name a policy whose folder was taken away.
    spec = _specs().get(policy)
    module = spec.fill if spec else None
    technique = cast(Fill, import_module(module or _DEFAULT_FILL).fill)
    if spec is None or not stated:
        return technique
    # What is wrong with them is said by the report of the policy's plan.
    parameters, _ = usable_parameters(policy, stated)
    return lambda wanted: technique(replace(wanted, parameters=parameters))


def needs_actor(policy: str) -> bool:
    """Whether the policy of that name asks for an actor that was trained for the fleet."""
    spec = _specs().get(policy)
    return spec is not None and spec.needs_actor


def trained_policies() -> tuple[str, ...]:
    """The names of the policies that have something to learn, sorted."""
    return tuple(name for name in policies() if spec_of(name).trainer is not None)


def trainer_of(policy: str) -> PolicyTrainer:
    """The trainer of one of `trained_policies`. Raises LookupError for any other one."""
    spec = _specs().get(policy)
    if spec is None or spec.trainer is None:
        raise LookupError(f"policy {policy!r} cannot be trained")
    return cast(PolicyTrainer, import_module(spec.trainer))


def exporter_of(policy: str) -> ProgramExporter | None:
    """Who writes the integer program of the policy of that name out; None where it has none."""
    module = spec_of(policy).exporter
    return None if module is None else cast(ProgramExporter, import_module(module))


def dispatches_jobs(policy: str) -> bool:
    """Whether offline jobs have a dispatcher of their own under the policy of that name."""
    spec = _specs().get(policy)
    return spec is not None and spec.dispatches_jobs is not None


def scheduler_of(policy: str, stated: Mapping[str, Setting]) -> JobScheduler:
    """The scheduler of jobs of a policy that `dispatches_jobs`, with its parameters.

    Raises LookupError for any other one.
    """
    spec = _specs().get(policy)
    if spec is None or spec.dispatches_jobs is None:
        raise LookupError(f"policy {policy!r} dispatches no jobs")
    parameters, _ = usable_parameters(policy, stated)
    make: Callable[[PolicyParameters], JobScheduler]
    make = import_module(spec.dispatches_jobs).scheduler
    return make(parameters)


@cache
def _specs() -> Mapping[str, PolicySpec]:
    """By name. Raises ValueError where two have the same."""
    found: dict[str, PolicySpec] = {}
    for spec in _all():
        if spec.name in found:
            raise ValueError(f"two policies are called {spec.name!r}")
        found[spec.name] = spec
    return found


def _all() -> Iterator[PolicySpec]:
    yield from baselines.POLICIES
    yield from greedy.POLICIES
    yield from joint.POLICIES
    # Sorted, since the order of a directory differs from one file system to the next.
    folders = pkgutil.iter_modules(import_module(_PAPERS).__path__)
    for name in sorted(folder.name for folder in folders):
        yield from import_module(f"{_PAPERS}.{name}.spec").POLICIES
