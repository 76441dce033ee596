"""Scenarios: what is simulated, as users write it (YAML or JSON). Strict like manifests, and as well documented.

A scenario says which fleet serves which services under which load, what goes wrong meanwhile, which policies decide,
and for which seeds; every policy runs with every seed. Times are seconds of the simulated clock, from 0 on.
docs/simulate.md explains it with examples.
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Literal, Self

from pydantic import ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from app.base.errors import no_such
from app.manifests.parts import Metadata, Strict
from app.manifests.policies import PolicyManifestSpec
from app.simulate.scenario.checks import (
    Complaint,
    Path,
    complaints,
    group_complaints,
    parameter_complaints,
)
from app.simulate.scenario.parts import PolicyRun, ScenarioFields

PERFECT = {f"perfect, room {room:g}": room for room in (1.0, 0.9, 0.8, 0.7)}
"""Runs of the perfect system, and how much of what comes they carry: at less than all, what SLOs forgive is spent."""


class ScenarioSpec(ScenarioFields):
    """What is simulated."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        found = [*complaints(self), *self._of_settings()]
        # A ValueError could name one field only; this one names each complaint's own.
        if found:
            raise ValidationError.from_exception_data(
                "ScenarioSpec", [_details(path, problem) for path, problem in found]
            )
        return self

    def _of_settings(self) -> Iterator[Complaint]:
        """What each policy has otherwise than `loop`."""
        for place, run in enumerate(self.policies):
            try:
                loop = loop_of(self, run)
            except ValidationError as error:
                for entry in error.errors():
                    yield (
                        ("policies", place, "settings", *entry["loc"]),
                        _describe(entry),
                    )
                continue
            yield from self._of_loop(place, run, loop)

    def _of_loop(
        self,
        place: int,
        run: PolicyRun,
        loop: PolicyManifestSpec,
    ) -> Iterator[Complaint]:
        own: Path = ("policies", place, "settings")
        if "policy" in run.settings:
            yield (*own, "policy"), "settings cannot make another policy of it"
        # What comes from `loop` is named there.
        if loop.window_s < self.agent_period_s:
            path = own if "window_s" in run.settings else ("loop",)
            yield (
                (*path, "window_s"),
                f"must be at least the {self.agent_period_s:g} s of agent_period_s, after which agents report, "
                f"not {loop.window_s:g}",
            )
        # Groups of `loop` are every policy's, and their complaints are made once.
        own_groups = "groups" in run.settings
        if own_groups or place == 0:
            yield from group_complaints(self, loop, *(own if own_groups else ("loop",)))
        own_parameters = "parameters" in run.settings
        if own_parameters or place == 0:
            path = own if own_parameters else ("loop",)
            yield from parameter_complaints(loop, *path)


class SimulationScenario(Strict):
    """A scenario's file."""

    apiVersion: Literal["plimsoll/v1"] = "plimsoll/v1"  # noqa: N815  the field's name in every manifest
    kind: Literal["Scenario"] = "Scenario"
    metadata: Metadata
    spec: ScenarioSpec


def loop_of(spec: ScenarioSpec, run: PolicyRun) -> PolicyManifestSpec:
    """The settings under which a policy decides. Raises ValidationError."""
    return PolicyManifestSpec.model_validate(
        {**spec.loop.model_dump(), **run.settings, "policy": run.policy}
    )


def with_policies(
    scenario: SimulationScenario, names: Sequence[str]
) -> SimulationScenario:
    """The scenario with these policies in place of its own; those that it has keep their settings."""
    # A name may stand for several runs of one policy with different settings: all of them stay.
    own = scenario.spec.policies
    runs = [
        run
        for name in names
        for run in [each for each in own if each.policy == name]
        or [PolicyRun(policy=name)]
    ]
    return scenario.model_copy(
        update={"spec": scenario.spec.model_copy(update={"policies": runs})}
    )


def with_perfect(scenario: SimulationScenario) -> SimulationScenario:
    """The scenario with the perfect system after its own policies, once for each of its rooms.

    Raises ValidationError, as where the load depends on the answers, so that no plan can know it.
    """
    perfect = [
        PolicyRun(
            policy="joint",
            name=name,
            clairvoyant=True,
            room=room,
        )
        for name, room in PERFECT.items()
    ]
    runs = [run.model_dump() for run in (*scenario.spec.policies, *perfect)]
    spec = ScenarioSpec.model_validate({**scenario.spec.model_dump(), "policies": runs})
    return scenario.model_copy(update={"spec": spec})


def files_of(spec: ScenarioSpec) -> Iterator[PurePath]:
    """Traces, job lists and a grid intensity, relative to the scenario's own file."""
    if spec.grid_intensity is not None:
        yield spec.grid_intensity
    yield from (
        each.file
        for service in spec.services
        for each in (service.load.trace, service.load.requests)
        if each is not None
    )
    yield from (entry.file for entry in spec.task_lists)


def _details(path: Path, problem: str) -> InitErrorDetails:
    error = PydanticCustomError("value_error", "{it}", {"it": problem})
    return InitErrorDetails(
        type=error,
        loc=path,
        input="",
    )


def _describe(error: ErrorDetails) -> str:
    """What is wrong with a setting."""
    if error["type"] == "extra_forbidden":
        return no_such(
            "setting", str(error["loc"][-1]), list(PolicyManifestSpec.model_fields)
        )
    # Our own messages state the values already.
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    wanted = (
        error["msg"]
        .partition(", unable")[0]
        .replace("Input should be", "must be", 1)
        .replace("a valid ", "a ", 1)
    )
    return f"{wanted}, not {error['input']!r}"
