"""`plimsoll trace generate`: traces made by seed, of the shapes that the simulator draws from."""

import math
from collections.abc import Callable
from enum import StrEnum
from shlex import quote
from typing import Annotated

import typer

from agents.sim.load.arrivals import LoadShape, Modulation, Spike
from app.cli.common.files import STDIO
from app.cli.common.options import command_group
from app.cli.common.scenario_flags import parse_rate
from app.cli.simulation.trace_files import Written
from app.cli.simulation.trace_series import (
    Draw,
    Duration,
    Name,
    Seed,
    WantedSeries,
    seconds,
    write_series,
)
from app.simulate.traces.crowds import MAX_CROWDS, CrowdedLoad, FlashCrowds

app = command_group(
    "Generate a trace of a known shape: a day, a spike, a Markov chain, flash crowds."
)


class BurstSource(StrEnum):
    """Whose measured bursts are resampled."""

    CONV = "conv"
    """Azure's LLM service for conversations: mild."""
    CODE = "code"
    """Azure's LLM service for code: strong."""


MAX_RPS = 1e6
"""More than a simulation could draw."""

Mean = Annotated[
    float,
    typer.Option(metavar="RPS", min=0.0, max=MAX_RPS, help="Mean of the curve"),
]
BurstWeight = Annotated[
    float,
    typer.Option(
        "--bursts", min=0.0, max=1.0, help="0 = none, 1 = as strong as measured"
    ),
]
BurstsOf = Annotated[
    BurstSource, typer.Option(help="Which bursts: conv is mild, code is strong")
]
Means = Annotated[
    list[float],
    typer.Option(
        metavar="RPS",
        min=0.0,
        max=MAX_RPS,
        help="Mean without crowds; once for all series, or once for each",
    ),
]
# Texts, as all times are until the body of a command: the note repeats them as they were typed.
Gap = Annotated[str, typer.Option(metavar="TIME", help="Mean time between crowds")]
Factors = Annotated[
    str,
    typer.Option(
        metavar="LOW:HIGH",
        help="The rate jumps to a multiple drawn between these, at least 1",
    ),
]
Decays = Annotated[
    str,
    typer.Option(
        metavar="SHORT:LONG",
        help="Time in which the excess falls to 37 %, drawn between these",
    ),
]
Joined = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, help="Chance that a crowd also hits a given series"),
]
Noise = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Noise of the rate, 0.1 = 10 %; once for all series together, once for each",
    ),
]
Amplitude = Annotated[
    float,
    typer.Option(
        min=0.0, max=1.0, help="Height of a slow wave, as a fraction of the mean"
    ),
]
Period = Annotated[str, typer.Option(metavar="TIME", help="Length of the wave")]


@app.command()
def diurnal(
    mean: Mean,
    amplitude: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Swing up and down, as a fraction of the mean"
        ),
    ] = 0.5,
    *,
    period: Annotated[
        str, typer.Option(metavar="TIME", help="Length of a day")
    ] = "24h",
    phase: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="When the rate crosses its mean upwards [default: 0s]"
        ),
    ] = None,
    bursts: BurstWeight = 0.0,
    bursts_of: BurstsOf = BurstSource.CONV,
    duration: Duration = "24h",
    name: Name = None,
    seed: Seed = 0,
    draw: Draw = False,
    output: Written = STDIO,
) -> None:
    """A daily sine curve around the mean, with optional bursts."""
    shape = LoadShape(
        mean_rps=mean,
        day_amplitude=amplitude,
        day_period_s=seconds(period),
        # None stands for 0 s, which is no duration that could be typed.
        day_phase_s=0.0 if phase is None else seconds(phase),
        burst_service=bursts_of,
        burst_weight=bursts,
    )
    # :.12g writes 60.0 as people type it: 60.
    options = f"--mean {mean:.12g} --amplitude {amplitude:.12g} --period {period}"
    options += "" if phase is None else f" --phase {phase}"
    options += _burst_options(bursts, bursts_of)
    wanted = WantedSeries(
        name=name, duration=duration, seed=seed, draw=draw, output=output
    )
    write_series([shape] * len(wanted.names), f"diurnal {options}", wanted)


@app.command()
def spike(
    mean: Mean,
    at: Annotated[
        str, typer.Option(metavar="TIME", help="When the spike is at its full height")
    ] = "10m",
    *,
    length: Annotated[
        str, typer.Option(metavar="TIME", help="How long it stays there")
    ] = "5m",
    factor: Annotated[
        float, typer.Option(min=0.0, help="Height, as a multiple of the mean")
    ] = 4.0,
    ramp: Annotated[
        str, typer.Option(metavar="TIME", help="How long it climbs and falls")
    ] = "20s",
    bursts: BurstWeight = 0.0,
    bursts_of: BurstsOf = BurstSource.CONV,
    duration: Duration = "1h",
    name: Name = None,
    seed: Seed = 0,
    draw: Draw = False,
    output: Written = STDIO,
) -> None:
    """A steady rate with one spike, which climbs, holds and falls."""
    one = Spike(
        start_s=seconds(at),
        length_s=seconds(length),
        factor=factor,
        ramp_s=seconds(ramp),
    )
    shape = LoadShape(
        # A spike is a multiple of the mean, so that bursts grow with it.
        mean_rps=mean,
        spikes=(one,),
        burst_service=bursts_of,
        burst_weight=bursts,
    )
    options = f"--mean {mean:.12g} --at {at} --length {length} --factor {factor:.12g} --ramp {ramp}"
    options += _burst_options(bursts, bursts_of)
    wanted = WantedSeries(
        name=name, duration=duration, seed=seed, draw=draw, output=output
    )
    write_series([shape] * len(wanted.names), f"spike {options}", wanted)


@app.command()
def mmpp(
    level: Annotated[
        list[str],
        typer.Option(
            metavar="RPS:TIME",
            help="A rate and the mean time at it, such as 180:10s; twice or more",
        ),
    ],
    duration: Duration = "1h",
    *,
    name: Name = None,
    seed: Seed = 0,
    draw: Draw = False,
    output: Written = STDIO,
) -> None:
    """A Markov-modulated Poisson process: the rate jumps between levels at random times.

    It stays at each level for an exponential time, then jumps to any other.
    """
    pairs = [_level(each) for each in level]
    # A chain with one state has nowhere to go.
    if len(pairs) < 2:
        raise typer.BadParameter(
            "give at least two, such as --level 20:60s --level 180:10s",
            param_hint="'--level'",
        )
    shape = Modulation(
        levels_rps=tuple(rate for rate, _ in pairs),
        mean_stays_s=tuple(stay for _, stay in pairs),
    )
    # Quoted, because numbers may have spaces around them: "10: 3s" must not fall apart in a shell.
    options = " ".join(f"--level {quote(each)}" for each in level)
    wanted = WantedSeries(
        name=name, duration=duration, seed=seed, draw=draw, output=output
    )
    write_series([shape] * len(wanted.names), f"mmpp {options}", wanted)


@app.command()
def flash_crowds(
    mean: Means,
    every: Gap = "6m",
    *,
    factor: Factors = "1.5:5",
    decay: Decays = "20s:2m",
    joined: Joined = 0.75,
    noise: Noise = 0.1,
    amplitude: Amplitude = 0.3,
    period: Period = "25m",
    duration: Duration = "30m",
    name: Name = None,
    seed: Seed = 0,
    draw: Draw = False,
    output: Written = STDIO,
) -> None:
    """A slow wave with flash crowds: the rate jumps at once, falls slowly, and most series jump together."""
    wanted = WantedSeries(
        name=name, duration=duration, seed=seed, draw=draw, output=output
    )
    _check_crowds(every, wanted)
    # One for all series: they share its crowds and half of their noise.
    crowds = FlashCrowds(
        seed=seed,
        mean_gap_s=seconds(every),
        # Below 1 a crowd would take requests away, and several at once more than there are.
        factors=_range(factor, "--factor", float, lowest=1.0, example="1.5:5"),
        decays_s=_range(decay, "--decay", seconds, lowest=0.0, example="20s:2m"),
        noise=noise,
    )
    count = len(wanted.names)
    if len(mean) not in (1, count):
        raise typer.BadParameter(
            f"{len(mean)} means for {count} series; give one, or one for each --name",
            param_hint="'--mean'",
        )
    shapes = [
        CrowdedLoad(
            mean_rps=each,
            crowds=crowds,
            joined=joined,
            amplitude=amplitude,
            period_s=seconds(period),
        )
        for each in (mean * count if len(mean) == 1 else mean)
    ]
    means = " ".join(f"--mean {each:.12g}" for each in mean)
    # As it was typed and quoted, as levels are; durations have no spaces.
    options = f"{means} --every {every} --factor {quote(factor)} --decay {decay}"
    options += f" --joined {joined:.12g} --noise {noise:.12g} --amplitude {amplitude:.12g} --period {period}"
    write_series(shapes, f"flash-crowds {options}", wanted)


def _check_crowds(every: str, wanted: WantedSeries) -> None:
    """Refuse more crowds than anybody would wait for. Raises BadParameter."""
    expected = wanted.duration_s / seconds(every)
    if expected > MAX_CROWDS:
        # Up to the next second: what is proposed must be accepted, however it is rounded.
        enough_s = math.ceil(wanted.duration_s / MAX_CROWDS)
        raise typer.BadParameter(
            f"about {expected:,.0f} crowds within {wanted.duration} are too many, at most {MAX_CROWDS:,}: "
            f"write {enough_s}s or longer, or a shorter --duration",
            param_hint="'--every'",
        )


def _range(
    text: str,
    option: str,
    read: Callable[[str], float],
    *,
    lowest: float,
    example: str,
) -> tuple[float, float]:
    """`1.5:5` as its two ends. Raises BadParameter."""
    low, colon, high = text.partition(":")
    try:
        ends = read(low), read(high if colon else low)
    except ValueError:
        ends = math.nan, math.nan
    # NaN fails, as it should; an end of infinity would make rates that cannot be drawn.
    if not lowest <= ends[0] <= ends[1] < math.inf:
        raise typer.BadParameter(
            f"{text!r} must be two ends of at least {lowest:g}, the lower one first, such as {example}",
            param_hint=f"'{option}'",
        )
    return ends


def _burst_options(weight: float, service: BurstSource) -> str:
    # Without bursts it does not matter whose they are, and a note is read by people.
    return f" --bursts {weight:.12g} --bursts-of {service}" if weight else ""


def _level(level: str) -> tuple[float, float]:
    rate, colon, stay = level.partition(":")
    # Without this check the error would be about an empty duration, which was not typed.
    if not colon:
        raise typer.BadParameter(
            f"{level!r} is not RPS:TIME, such as 180:10s", param_hint="'--level'"
        )
    try:
        return parse_rate(rate), seconds(stay)
    except ValueError as error:
        raise typer.BadParameter(
            f"{level!r}: {error}", param_hint="'--level'"
        ) from error
