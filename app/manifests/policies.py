"""What the control loop's Policy is written as: its settings, and groups of services with a policy of their own."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from app.manifests.parts import (
    Amount,
    LabelValue,
    Name,
    Size,
    Strict,
    SurviveShare,
)
from solvers.governors.registry import GOVERNORS
from solvers.types.outcome import TICK
from solvers.types.survival import LossKind


class PolicyGroupSpec(Strict):
    """Services that a policy of their own decides on, with GPUs of their own."""

    name: Name
    policy: str = Field(max_length=63)
    projects: list[Name] = Field(
        default_factory=list,
        max_length=100,
        description="Services of these projects; empty: of any",
    )
    labels: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=63)], LabelValue
    ] = Field(
        default_factory=dict,
        max_length=64,
        description="Services that have all of these labels",
    )
    mode: Literal["advise", "approve", "auto"] = Field(
        default="auto",
        description="For its services; the more cautious of this, theirs and the policy's counts",
    )

    @model_validator(mode="after")
    def _chooses(self) -> "PolicyGroupSpec":
        # It would take every service from the groups behind it.
        if not self.projects and not self.labels:
            raise ValueError("give projects or labels: for all services, set `policy`")
        return self


def _unique(groups: list[PolicyGroupSpec]) -> list[PolicyGroupSpec]:
    names = [group.name for group in groups]
    # Sorted, so that the message is the same each time.
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"two groups are called {repeated[0]!r}; a name says which one is meant"
        )
    return groups


Groups = Annotated[list[PolicyGroupSpec], Field(max_length=16), AfterValidator(_unique)]
"""Groups of services in the order in which they are decided."""


_Name = Annotated[str, StringConstraints(min_length=1, max_length=63)]
_ROOM = (
    "room follows from each service's error budget. Leave it out; to have more requests in time than the SLOs ask for, "
    "set target_attainment"
)
_STARTS = "a rearrangement must save what its launches count for. Leave it out, or set start_price"
FORMER_FIELDS = {
    "headroom": _ROOM,
    "burst_confidence": _ROOM,
    "hysteresis": _STARTS,
    "move_budget": _STARTS,
}
"""Fields of before, which old files may have, and what is there in their place."""

StatedParameters = dict[_Name, dict[_Name, StrictInt | StrictFloat | StrictStr]]
"""By policy. Whether the policies know them is asked where they are written: what was right once must stay readable."""


class PolicyManifestSpec(Strict):
    """How the control loop decides; every write makes a new version, which each plan records."""

    @model_validator(mode="before")
    @classmethod
    def _without_former_fields(cls, document: Any) -> Any:
        known = document if isinstance(document, dict) else {}
        for field, in_its_place in FORMER_FIELDS.items():
            if field in known:
                raise ValueError(f"{field} is gone: {in_its_place}")
        return document

    policy: str = Field(default="joint", max_length=63)
    parameters: StatedParameters = Field(
        default_factory=dict,
        max_length=32,
        description="Parameters by policy, as in `{hetsev: {queues: 8}}`, which `plimsoll policy describe` lists, and "
        "of the governor power_latency. Absent: the defaults",
    )
    mode: Literal["off", "advise", "approve", "auto"] = "auto"
    paused: bool = False
    period_s: float = Field(default=5.0, ge=0.5, le=3600, allow_inf_nan=False)
    objective: Literal["min_cost", "max_goodput"] = "min_cost"
    energy_price_usd_per_kwh: Amount = 0.0
    carbon_price_usd_per_t: Amount = Field(
        default=0.0,
        description="Price of a tonne of carbon dioxide; plans add it to that of energy",
    )
    carbon_g_per_kwh: list[Amount] = Field(
        default_factory=list,
        max_length=24,
        description="Grams of carbon dioxide that the grid emits per kWh: one figure, or 24, one per hour of the day "
        "in UTC. Empty: unknown",
    )
    max_replicas_per_gpu: int = Field(default=4, ge=1, le=48)
    migration_cost_usd_per_hour: Amount = 0.0
    target_attainment: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="Share of the requests of every service that is to be in time, where that is more than the "
        "percentile of its SLO; 1: no error budget is spent to save cost",
    )
    survive: LossKind = Field(
        default="node",
        description="Services without a setting of their own are spread to survive the loss of any one of these, "
        "where that needs no additional replica",
    )
    survive_share: SurviveShare = Field(
        default=0.5,
        description="Part of their forecast rate that is left after the loss",
    )
    stale_after_s: float = Field(default=15.0, ge=1.0, le=86_400, allow_inf_nan=False)
    solve_seconds: float = Field(
        default=TICK.seconds, gt=0, le=600, allow_inf_nan=False
    )
    solve_work: float = Field(default=TICK.work, gt=0, le=600, allow_inf_nan=False)
    seed: int = Field(default=TICK.seed, ge=0, le=2**31 - 1)
    window_s: float = Field(default=1.0, ge=0.5, le=300, allow_inf_nan=False)
    fit_quantile: float = Field(
        default=0.9,
        ge=0.5,
        le=0.999,
        allow_inf_nan=False,
        description="Plans use this quantile of the execution times; 0.5: as stated and learned",
    )
    learning: bool = Field(
        default=True,
        description="Whether measured latencies correct the operating points used in plans",
    )
    start_price: float = Field(
        default=TICK.stability.start_price,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="What each launch of a replica counts for where plans serve alike, beyond "
        "migration_cost_usd_per_hour: a share of what a running replica costs on average",
    )
    min_dwell_s: float = Field(
        default=TICK.stability.min_dwell_s,
        ge=0.0,
        le=86_400,
        allow_inf_nan=False,
        description="Seconds for which an arrangement stays before it may be rearranged to save cost; demand is served "
        "at once",
    )
    governor: str | None = Field(
        default=None,
        max_length=63,
        description="What adjusts clocks and batches on the nodes within the plan, second by second: "
        f"{', '.join(sorted(GOVERNORS))}. Absent: nothing",
    )
    power_budget_w: Size | None = Field(
        default=None,
        description="Limit in watts for all GPUs in use, including their idle power. Without a governor that caps "
        "power, a plan that would draw more is refused; with one, every GPU gets its part as a cap. Absent: no limit",
    )

    groups: Groups = Field(
        default_factory=list,
        description="Groups of services with their own policy and GPUs, decided in this order; a service belongs to "
        "the first group that matches, and services without a group follow `policy`, last",
    )
    approve: Literal["all", "services"] = Field(
        default="all",
        description="What waits for a person in mode approve. all: every plan; services: all but those that only "
        "start, move or stop tasks on leftover capacity",
    )
    approve_switch: bool = Field(
        default=False,
        description="The first plan after a change of policy waits for approval, in any mode",
    )

    @field_validator("carbon_g_per_kwh", mode="before")
    @classmethod
    def _one_figure(cls, stated: Any) -> Any:
        # One figure may be written without brackets.
        return [stated] if isinstance(stated, int | float) else stated

    @field_validator("carbon_g_per_kwh")
    @classmethod
    def _hours(cls, series: list[float]) -> list[float]:
        # The hour of the day is the index: any other length would have no meaning.
        if len(series) not in (0, 1, 24):
            raise ValueError(
                f"must have 1 figure or 24, one per hour of the day, not {len(series)}"
            )
        return series

    @field_validator("governor")
    @classmethod
    def _known_governor(cls, governor: str | None) -> str | None:
        # Here, since agents would learn of a name that they do not have only with the next command.
        if governor is not None and governor not in GOVERNORS:
            raise ValueError(
                f"must be one of {', '.join(sorted(GOVERNORS))}, not {governor!r}"
            )
        return governor
