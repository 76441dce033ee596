"""The load of a service in a scenario: a curve, a trace, levels or clients. Each is strict by itself."""

from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from app.manifests.objects import LengthsSpec
from app.manifests.parts import Amount, Strict

# 31,536,000 s are a year of 365 days.
Seconds = Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False)]

Positive = Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)]


class DayCurve(Strict):
    """The rate swings around its mean once per period."""

    amplitude: float = Field(
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="1: from nothing to twice the mean",
    )
    period_s: Positive = 86_400.0
    phase_s: Seconds = Field(
        default=0.0,
        description="When the curve passes its mean on its way up",
    )


class LoadSpike(Strict):
    """The rate climbs to `factor` times what it would be, stays there, and falls back."""

    start_s: Seconds
    length_s: Seconds
    factor: float = Field(ge=0, le=1000, allow_inf_nan=False)
    ramp_s: Seconds = 20.0


class MeasuredBursts(Strict):
    """Bursts as measured of two LLM services (Azure 2023), resampled."""

    service: Literal["conv", "code"] = Field(
        default="conv",
        description="conv: mild; code: strong",
    )
    weight: float = Field(
        default=1.0,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="1 = as strong as measured",
    )


class Levels(Strict):
    """The rate jumps between levels and stays at each for an exponential time (MMPP)."""

    rates_rps: list[Amount] = Field(min_length=2, max_length=16)
    mean_stays_s: list[Positive] = Field(
        min_length=2,
        max_length=16,
        description="Of each level",
    )

    @model_validator(mode="after")
    def _one_stay_per_level(self) -> Self:
        if len(self.rates_rps) != len(self.mean_stays_s):
            raise ValueError(
                f"{len(self.rates_rps)} rates_rps need as many mean_stays_s, not {len(self.mean_stays_s)}"
            )
        return self


class TraceRef(Strict):
    """Requests per second from a trace file (`plimsoll trace`)."""

    file: PurePath = Field(description="Relative to the scenario's own file")
    column: str = Field(min_length=1, max_length=253)
    scale: Positive = Field(default=1.0, description="Factor on the trace's rates")
    start_s: Seconds = Field(
        default=0.0,
        description="The trace's second at which the simulation begins; one at which a step does",
    )


class RequestsRef(Strict):
    """Requests with their lengths, of a file with a row for each, such as those that are published as traces."""

    file: PurePath = Field(description="Relative to the scenario's own file")
    prompt: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Column of tokens; absent: the one that published traces call so",
    )
    output: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Column of tokens; absent: the one that published traces call so",
    )


class ClientStep(Strict):
    """A number of clients from a moment on, until the next one."""

    start_s: Seconds
    clients: int = Field(ge=0, le=100_000)


class ServiceLoad(Strict):
    """The requests of one service: a curve around `rate_rps`, a trace, levels, or clients; Poisson but for clients."""

    rate_rps: Amount | None = Field(
        default=None,
        description="Mean of a curve, which the next three give its shape",
    )
    day: DayCurve | None = None
    spikes: list[LoadSpike] = Field(default_factory=list, max_length=100)
    bursts: MeasuredBursts | None = None
    even: bool = Field(
        default=False,
        description="Requests come at even distances, as load generators send them, and not at random",
    )
    lengths: LengthsSpec | None = Field(
        default=None,
        description="Of a language model's requests; absent: as the service states them",
    )
    requests: RequestsRef | None = Field(
        default=None,
        description="Lengths of a language model's requests one after the other, and again from the first; in place of "
        "lengths",
    )
    trace: TraceRef | None = None
    levels: Levels | None = None
    clients: (
        Annotated[list[ClientStep], Field(min_length=1, max_length=10_000)] | None
    ) = Field(
        default=None,
        description="Closed loop: clients, each of which sends its next request when its last one is answered; "
        "a number of them, or a list of steps where it changes",
    )

    @field_validator("clients", mode="before")
    @classmethod
    def _a_number_is_one_step(cls, value: Any) -> Any:
        if isinstance(value, list | None):
            return value
        # Python takes `true` for 1; in a scenario it is a mistake.
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"must be a whole number of at least 1, or a list of steps, not {value!r}"
            )
        return [{"start_s": 0, "clients": value}]

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        # Sources are alternatives; the shapes below change a `rate_rps`, so they are not counted.
        sources = ("rate_rps", "trace", "levels", "clients")
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give one of {', '.join(sources)}, not {' and '.join(given) or 'none of them'}"
            )
        if self.requests is not None and self.lengths is not None:
            raise ValueError("give one of lengths and requests, not both")
        if self.even and self.clients is not None:
            raise ValueError("even means nothing with clients, who wait for answers")
        shapes = [name for name in ("day", "spikes", "bursts") if getattr(self, name)]
        if shapes and given != ["rate_rps"]:
            raise ValueError(
                f"{shapes[0]} shapes a rate_rps; with {given[0]} it means nothing"
            )
        return self
