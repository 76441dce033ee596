"""InSS's trained actor: a few arrays, for whom they were trained, and how it proposes provisions. Needs no PyTorch.

A proposal is a round of choices: each slot in turn sees what was given away before it and takes the option that its
head thinks best. Some more rounds are drawn by chance in proportion to what the heads think; the caller takes the
best of all by the world's own reward. The paper takes the first round as it is.

An actor is valid for one fleet and for the services that it was trained with, or some of them: `refusal` says why not.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from solvers.papers.inss.training.world import ProvisioningWorld
from solvers.papers.inss.training.world_rows import ActorSetting, Indices, Reals
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import GpuType, fingerprint_of

HIDDEN = (512, 256)
"""Units of the hidden layers (section 6.1)."""
_VERSION = 1
_MAX_BYTES = 50_000_000

Floats = npt.NDArray[np.float32]
Layers = tuple[Floats, ...]
"""Weights (outputs, inputs) and offsets (outputs,) in turn, layer by layer."""


class BadActor(ValueError):
    """Bytes that are no actor of this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownService:
    """A service as the actor knows it: its head is that service's, whatever it is called."""

    network: str
    slo_ms: float
    percentile: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Actor:
    """Weights, and what they are valid for."""

    layers: Layers
    fleet: tuple[tuple[str, int], ...]
    """GPU types with their number, sorted."""
    services: tuple[KnownService, ...]
    """In the order of the heads."""
    sm_percents: tuple[float, ...]
    slots: int = 1
    """How many each service has."""
    notes: str = ""
    """When and how it was trained."""

    @property
    def fingerprint(self) -> str:
        """The short name of the fleet."""
        return fingerprint_of(self.fleet)


def fleet_of(gpu_types: Sequence[GpuType]) -> tuple[tuple[str, int], ...]:
    """GPU types with how many GPUs there are; a type without a limit counts as 0."""
    # A type without GPUs is no part of the fleet, whether the problem still lists it or not.
    counts = ((each.name, each.count or 0) for each in gpu_types if each.count != 0)
    return tuple(sorted(counts))


def gpus_of(fleet: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """The GPU type of each GPU of a fleet, sorted as the fleet is."""
    return tuple(name for name, count in fleet for _ in range(count))


def known_service(service: ServiceDemand) -> KnownService:
    """What an actor knows a service by."""
    return KnownService(
        network=service.network, slo_ms=service.slo_ms, percentile=service.percentile
    )


def refusal(actor: Actor, problem: Problem) -> str:
    """Why the actor's weights are not valid for the Problem; empty where they are."""
    fleet = fleet_of(problem.gpu_types)
    if fleet != actor.fleet:
        return (
            f"the actor was trained for fleet {actor.fingerprint} ({_describe(actor.fleet)}), "
            f"this is {fingerprint_of(fleet)} ({_describe(fleet)})"
        )
    seen = set()
    for service in sorted(problem.services, key=lambda service: service.name):
        key = known_service(service)
        # Two alike would share one head, which can place only one of them.
        if key not in actor.services or key in seen:
            known = "only once a" if key in seen else "no"
            return (
                f"the actor knows {known} {service.network} with {service.slo_ms:g} ms at "
                f"{service.percentile:g} as {service.name} is"
            )
        seen.add(key)
    return ""


def setting_of(actor: Actor, problem: Problem) -> ActorSetting:
    """The world's setting in the order of the actor's heads; heads of absent services get a name that none has."""
    names = {known_service(service): service.name for service in problem.services}
    return ActorSetting(
        gpus=gpus_of(actor.fleet),
        services=tuple(
            names.get(key, f"\0{place}") for place, key in enumerate(actor.services)
        ),
        slots=actor.slots,
        sm_percents=actor.sm_percents,
    )


def setting_to_train(
    problem: Problem,
    *,
    clocks_mhz: Sequence[float],
    slots: int = 1,
) -> ActorSetting:
    """What an actor for the Problem's fleet and services is trained on: services that carry least choose first.

    Raises ValueError where a GPU type has no limit, or nothing can be served.
    """
    if any(gpu_type.count is None for gpu_type in problem.gpu_types):
        raise ValueError(
            "an actor is trained for a fleet: say of every GPU type how many GPUs there are"
        )
    percents = {row.sm_percent for points in problem.points for row in points.rows}
    if not percents or not problem.services:
        raise ValueError(
            "there is nothing to train for: no service has an operating point on this fleet"
        )
    setting = ActorSetting(
        gpus=gpus_of(fleet_of(problem.gpu_types)),
        services=tuple(sorted(service.name for service in problem.services)),
        slots=slots,
        sm_percents=tuple(sorted(percents)),
    )
    world = ProvisioningWorld(problem, setting, clocks_mhz=clocks_mhz)
    return replace(setting, services=_hardest_first(world))


def _hardest_first(world: ProvisioningWorld) -> tuple[str, ...]:
    # A service that carries little needs many SMs, of which the first to choose find most.
    ranked = sorted(zip(world.max_rps.tolist(), world.setting.services, strict=True))
    return tuple(name for _, name in ranked)


def actor_of(
    layers: Layers,
    setting: ActorSetting,
    problem: Problem,
    *,
    notes: str,
) -> Actor:
    """The actor with these weights, trained on that setting of the Problem."""
    return Actor(
        layers=layers,
        fleet=fleet_of(problem.gpu_types),
        services=tuple(
            known_service(problem.service(name)) for name in setting.services
        ),
        sm_percents=setting.sm_percents,
        slots=setting.slots,
        notes=notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Situation:
    """What an actor is asked about: rates and queued requests (S,), memory in use by GPU (K,)."""

    rates_rps: Reals
    queued: Reals
    used_mib: Reals


def propose(
    actor: Actor,
    world: ProvisioningWorld,
    situation: Situation,
    *,
    rounds: int,
    seed: int,
) -> Indices:
    """(rounds, J) options: the first by what the heads think best, the others drawn; infeasible ones are masked."""
    random = np.random.default_rng(seed)
    rates, queued, used = (
        np.tile(values, (rounds, 1))
        for values in (situation.rates_rps, situation.queued, situation.used_mib)
    )
    chosen = np.full((rounds, world.slots), world.options - 1, dtype=np.intp)
    for slot in range(world.slots):
        # As in training, where PyTorch computes with single precision.
        seen = world.features(chosen, slot, used, rates, queued).astype(np.float32)
        logits = _head(actor.layers, seen, slot, world.options)
        logits[~world.allowed(chosen, slot, rates)] = -np.inf
        chosen[:, slot] = _drawn(logits, random)
    return chosen


def _drawn(logits: Reals, random: np.random.Generator) -> Indices:
    """(N,) the best option of the first row; of the others draws from the softmax."""
    # The largest of logits plus Gumbel noise is a draw from their softmax.
    noise = random.gumbel(size=logits.shape)
    # The first round is what the paper takes: every head's best option.
    noise[0] = 0.0
    return np.asarray((logits + noise).argmax(axis=1))


def _head(layers: Layers, seen: Floats, slot: int, options: int) -> Reals:
    """(N, A) the slot's logits."""
    first, first_offset, second, second_offset, last, last_offset = layers
    hidden = np.maximum(seen @ first.T + first_offset, 0.0)
    hidden = np.maximum(hidden @ second.T + second_offset, 0.0)
    # Only this slot's rows of the last layer, which is by far the largest.
    mine = slice(slot * options, (slot + 1) * options)
    return np.asarray(hidden @ last[mine].T + last_offset[mine], dtype=np.float64)


def actor_to_bytes(actor: Actor) -> bytes:
    """An .npz file: the layers, and what they are valid for as JSON."""
    facts = {
        "version": _VERSION,
        "fleet": [list(entry) for entry in actor.fleet],
        "services": [
            [key.network, key.slo_ms, key.percentile] for key in actor.services
        ],
        "sm_percents": list(actor.sm_percents),
        "slots": actor.slots,
        "notes": actor.notes,
    }
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        f"layer{place}": layer for place, layer in enumerate(actor.layers)
    }
    np.savez_compressed(
        buffer, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays
    )
    return buffer.getvalue()


def actor_from_bytes(data: bytes) -> Actor:
    """The actor that `actor_to_bytes` wrote. Raises BadActor for anything else."""
    # Before it is unpacked, when it may take much more memory.
    if len(data) > _MAX_BYTES:
        raise BadActor(f"an actor has at most {_MAX_BYTES:,} bytes, not {len(data):,}")
    try:
        # Without pickle: a file must not be able to run code here.
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            facts = json.loads(file["facts"].tobytes())
            layers = tuple(
                np.asarray(file[f"layer{place}"], np.float32) for place in range(6)
            )
        return _actor(facts, layers)
    except BadActor:
        raise
    except Exception as error:
        raise BadActor(
            f"these bytes are no actor: {error}; train one with `plimsoll policy train inss`"
        ) from error


def _actor(facts: Mapping[str, object], layers: Layers) -> Actor:
    if facts["version"] != _VERSION:
        raise BadActor(
            f"the actor has version {facts['version']}, this program reads {_VERSION}; train it again"
        )
    fleet = facts["fleet"]
    services = facts["services"]
    percents = facts["sm_percents"]
    # A failed assertion is a BadActor to the caller, as is whatever else a foreign file makes fail here.
    assert isinstance(fleet, list)
    assert isinstance(services, list)
    assert isinstance(percents, list)
    actor = Actor(
        layers=layers,
        fleet=tuple((str(name), int(count)) for name, count in fleet),
        services=tuple(
            KnownService(
                network=str(network), slo_ms=float(slo_ms), percentile=float(percentile)
            )
            for network, slo_ms, percentile in services
        ),
        sm_percents=tuple(map(float, percents)),
        slots=int(str(facts["slots"])),
        notes=str(facts["notes"]),
    )
    _check_outputs(actor)
    return actor


def _check_outputs(actor: Actor) -> None:
    gpus = sum(count for _, count in actor.fleet)
    outputs = len(actor.services) * actor.slots * (gpus * len(actor.sm_percents) + 1)
    last = actor.layers[-1]
    if len(last) != outputs:
        raise BadActor(
            f"the actor's last layer has {len(last)} outputs where its fleet asks for {outputs}"
        )


def _describe(fleet: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in fleet) or "no GPU"
