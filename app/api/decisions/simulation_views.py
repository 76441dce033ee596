"""Simulations: what the API is asked, and what it answers."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Protocol

from pydantic import Field, JsonValue, StringConstraints

from app.api.http.views import View
from app.db.decisions.simulations import NewSimulation, State
from app.manifests.parts import Name, Strict

# Policies times seeds runs, one after the other, in a process that all callers share.
MAX_POLICIES = 5
MAX_SEEDS = 5
MAX_TEXT = 65_536
"""Characters of a scenario, as it comes or as JSON."""

Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
PolicyLabel = Annotated[str, StringConstraints(min_length=1, max_length=63)]


class SimulationRequest(Strict):
    """A scenario, by the name of a shipped one or whole, and what shall be otherwise in it."""

    example: Annotated[str, StringConstraints(max_length=63)] | None = Field(
        default=None,
        description="Name of a shipped scenario (`GET /api/v1/simulations/examples`)",
    )
    scenario: (
        dict[str, JsonValue]
        | Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT)]
        | None
    ) = Field(
        default=None,
        description="Instead: a scenario as `plimsoll simulate` takes it, as an object or as text (YAML or JSON); "
        "it must name no files",
    )
    policies: (
        Annotated[list[PolicyLabel], Field(min_length=1, max_length=MAX_POLICIES)]
        | None
    ) = Field(
        default=None,
        description="Instead of the scenario's; policies of the scenario keep their settings",
    )
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=MAX_SEEDS)] | None = (
        Field(default=None, description="Instead of the scenario's")
    )
    duration_s: (
        Annotated[float, Field(ge=1, le=31_536_000, allow_inf_nan=False)] | None
    ) = Field(default=None, description="Instead of the scenario's")
    project: Name | None = Field(
        default=None,
        description="Project whose quota it counts for; optional for a token that is bound to one project",
    )


class FigureView(View):
    """A mean over the seeds."""

    mean: float
    half_width: float | None = Field(
        description="Of its 95 % confidence interval; null with one seed"
    )
    words: str = Field(
        description="As `plimsoll simulate` prints it; shares in percent"
    )


class ServiceFiguresView(View):
    """One service under one policy."""

    service: str
    cost_usd: FigureView
    attainment: FigureView | None = Field(
        description="Share of its requests within the SLO; null without requests"
    )
    p99_ms: FigureView | None


class PolicyFiguresView(View):
    """One policy over all seeds."""

    policy: str
    note: str = Field(
        description="If runs of it failed: how many seeds are left; otherwise empty"
    )
    cost_usd: FigureView
    gpu_hours: FigureView
    energy_kwh: FigureView
    violations: FigureView = Field(
        description="Share of all requests that were late, rejected or are overdue"
    )
    worst_attainment: FigureView | None = Field(
        description="Within the SLO, of the worst service"
    )
    replicas_started: FigureView
    misses: list[str] = Field(description="Services whose SLO it did not meet")
    services: list[ServiceFiguresView]


class SimulationSummaryView(View):
    """What a simulation came to."""

    headline: str = Field(
        description="The best policy compared with the others, in a sentence"
    )
    policies: list[PolicyFiguresView]
    notes: list[str] = Field(
        description="Problems known before the runs, which no policy is responsible for"
    )
    failed: list[str] = Field(description="Failed runs, and why")


class SimulationView(View):
    """A simulation that was asked for."""

    id: int
    asked_by: str
    project: str | None = Field(description="Project whose quota it counts for")
    name: str = Field(description="Of its scenario")
    example: str | None = Field(
        description="Name of the shipped scenario; null: the caller sent one"
    )
    policies: list[str]
    seeds: list[int]
    duration_s: float
    state: State
    progress: float = Field(
        ge=0, le=1, description="Share of the simulated time of all runs"
    )
    error: str | None = Field(description="Why it failed")
    has_json: bool = Field(description="Whether `report.json` was kept, too")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    summary: SimulationSummaryView | None = Field(
        description="Of a finished one; lists leave it out"
    )


class ExampleView(View):
    """A shipped scenario."""

    name: str
    title: str = Field(description="The first line of its file")
    policies: list[str]
    seeds: list[int]
    duration_s: float
    warm_up_s: float
    step_s: float
    services: int
    gpus: int


class ExamplesView(View):
    """What can be simulated by name, and within which limits."""

    items: list[ExampleView]
    policies: list[str] = Field(description="All available policies")
    limits: dict[str, float] = Field(
        description="The most of each; seconds are of the simulated clock"
    )


class ScenarioChecks(Protocol):
    """Who knows scenarios; the API itself does not."""

    def examples(self) -> Sequence[ExampleView]:
        """Shipped scenarios by name."""
        ...

    def limits(self) -> dict[str, float]:
        """The most of what may be asked for."""
        ...

    def policies(self) -> Sequence[str]:
        """Every policy by name."""
        ...

    def order(self, wanted: SimulationRequest) -> NewSimulation:
        """What is to be run. Raises InvalidRequest, which names every field that is wrong. Takes up to a second."""
        ...
