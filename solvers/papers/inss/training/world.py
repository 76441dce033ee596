"""The world in which InSS's actor is trained, and by which its proposals are judged: state, step and reward.

Sets: S services, of which each has one slot or several (a slot is a place for one replica); J slots; K GPUs;
A = K · P + 1 options of a slot: (GPU, SM percent) with P SM percents, and as the last one "nowhere".
Parameters: operating rows, capacity law, SLOs and percentiles of a Problem; arrival rates and queues of the moment.
Variables: an option per slot (the actor's), a batch per slot (`decide`: the batch decision, as in
`solvers.papers.inss.batch_decision`). Objective: the reward of a step, Σ_s h_s / H_s − ω · v_s (paper, eq. 3): h_s the
rate that the service's replicas carry, H_s that of a whole GPU with batch 1, v_s the share of its requests beyond what
they carry, ω = 100. Constraints: SM percents of a GPU add up to 100 at most (1a), memory and watts fit (1b), two slots
of a service are never on one GPU; with one slot per service each network runs on one GPU (1e). Options that would break
them are masked.

Source: InSS, sections 3.3, 5.2 and 6.1. Changed: services choose one after the other, each knowing what the ones before
it took, so that masks keep (1a) and (1b), where the paper lets an infeasible joint action fail and punishes it. The
rate that a replica carries is that of the capacity law, not b / t, at which a queue grows without end; v follows.
"""

from collections.abc import Sequence

import numpy as np

from solvers.laws.colocation import launch_factor
from solvers.papers.inss.training.world_rows import (
    NEVER,
    TOLERANCE,
    ActorSetting,
    DecidedBatches,
    Flags,
    GpuRooms,
    Indices,
    Places,
    Reals,
    at_batch,
    batches_of,
    read_rows,
    take_batches,
)
from solvers.types.problem import CapacityLaw, Problem, ServiceDemand

PENALTY = 100.0
"""ω (section 6.1)."""


class ProvisioningWorld:
    """A fleet and its services; every method answers for N situations at once."""

    def __init__(
        self, problem: Problem, setting: ActorSetting, *, clocks_mhz: Sequence[float]
    ) -> None:
        """`clocks_mhz`: the clock of each GPU type of the Problem, in its order."""
        self.setting = setting
        self._percents = np.array(setting.sm_percents)
        self.service_of: Indices = np.repeat(
            np.arange(len(setting.services)), setting.slots
        )
        self.slots = len(self.service_of)
        self.options = len(setting.gpus) * len(setting.sm_percents) + 1

        known = {service.name: service for service in problem.services}
        services = [known.get(name) for name in setting.services]
        # A service that is absent keeps its place, and the actor its head: it has no rows, and so is nowhere.
        self.slo_ms = np.array(
            [service.slo_ms if service else 1.0 for service in services]
        )
        self.batches = batches_of(problem, services)
        self._rows = read_rows(
            problem,
            setting,
            service_of=self.service_of,
            batches=self.batches,
            clocks_mhz=clocks_mhz,
        )
        self._read_gpus(problem)
        self._read_law(problem.capacity_law, services)
        self.entire_gpu_rps = self._entire_gpu_rps()
        self.max_rps = self._max_rps()

    def _read_gpus(self, problem: Problem) -> None:
        types = problem.gpu_types
        names = [gpu_type.name for gpu_type in types]
        self.type_of: Indices = np.array(
            [names.index(gpu) for gpu in self.setting.gpus], dtype=np.intp
        )
        gpus = [types[kind] for kind in self.type_of]
        self._memory_mib = np.array([gpu.memory_mib for gpu in gpus])
        self._room_w = np.array([gpu.power_cap_w - gpu.idle_w for gpu in gpus])
        self._max_replicas = problem.max_replicas_per_gpu
        counts = range(1, self.slots + 1)
        self._factors = np.array(
            [[launch_factor(kind, count) for count in counts] for kind in types]
        )
        # InSS-ni of section 6.3: neither a neighbour's launches nor its pressure cost anything.
        if not self.setting.knows_neighbours:
            self._factors[:] = 1.0
            self._rows.sensitivity[:] = 0.0

    def _read_law(
        self, law: CapacityLaw, services: Sequence[ServiceDemand | None]
    ) -> None:
        """The law's utilisations by service and batch, each over the ratios."""
        self._ratios = np.array(law.slo_ratios)
        percentiles = [
            law.percentiles.index(service.percentile) if service else 0
            for service in services
        ]
        places = [law.batches.index(int(batch)) for batch in self.batches]
        self._law = [
            [np.array(law.max_utilisation[at][place]) for place in places]
            for at in percentiles
        ]

    def place(self, option: int) -> tuple[int, float]:
        """GPU and SM percent of an option but the last."""
        gpu, share = divmod(option, len(self._percents))
        return gpu, float(self._percents[share])

    @property
    def option_percents(self) -> Reals:
        """(A,) SM percent of every option; 0 of the last."""
        return np.append(np.tile(self._percents, len(self.setting.gpus)), 0.0)

    def repeats_service(self, chosen: Indices) -> Flags:
        """(N,) whether two slots of a service are on one GPU."""
        gpu, _, is_placed = self._split(chosen)
        found = np.zeros(len(chosen), dtype=bool)
        for slot in range(1, chosen.shape[1]):
            same = np.flatnonzero(self.service_of[:slot] == self.service_of[slot])
            for other in same:
                is_on_same_gpu = gpu[:, slot] == gpu[:, other]
                found |= is_placed[:, slot] & is_placed[:, other] & is_on_same_gpu
        return found

    def allowed(self, chosen: Indices, slot: int, rates_rps: Reals) -> Flags:
        """(N, A) what the slot may choose next to the slots before it; chosen: (N, J), rates: (N, S).

        Nowhere is allowed to a service's second slot, and to a first one that finds no other place.
        """
        service = self.service_of[slot]
        fits = self._fits(slot, self._room(chosen[:, :slot]))
        for other in np.flatnonzero(self.service_of[:slot] == service):
            on = chosen[:, other] // len(self._percents)
            placed = np.flatnonzero(chosen[:, other] < self.options - 1)
            fits[placed, on[placed]] = False
        fits &= (rates_rps[:, service] > 0.0)[:, None, None]
        flat = fits.reshape(len(chosen), -1)
        is_first = slot == 0 or self.service_of[slot - 1] != service
        # Some option must always be left: a softmax over none has no value.
        nowhere = ~flat.any(axis=1, keepdims=True) | (not is_first)
        return np.concatenate([flat, nowhere], axis=1)

    def _fits(self, slot: int, room: GpuRooms) -> Flags:
        """(N, K, P) whether one replica more keeps (1a), (1b) and the limit of replicas, by GPU and SM percent."""
        # At the batch that needs least, since batches are decided later.
        min_mib = self._rows.min_mib[slot][self.type_of]
        min_w = self._rows.min_w[slot][self.type_of]
        fits: Flags = (
            (self._percents <= room.sm_percent[:, :, None] + TOLERANCE)
            & (min_mib <= room.memory_mib[:, :, None])
            & (min_w <= room.power_w[:, :, None])
            & (room.replicas < self._max_replicas)[:, :, None]
        )
        return fits

    def decide(self, chosen: Indices, queued: Reals) -> DecidedBatches:
        """The batches that carry most under the SLO, slot by slot as memory lasts, and what they carry.

        chosen: (N, J) options; queued: (N, S) requests. A GPU that breaks (1a) or (1b) carries nothing.
        """
        gpu, share, is_placed = self._split(chosen)
        at = (np.arange(chosen.shape[1])[None, :], self.type_of[gpu], share)
        carried = self._carried_in_time(at, gpu, is_placed, queued)
        room = self._room(chosen)
        is_lawful = self._obeys(room)[np.arange(len(chosen))[:, None], gpu] & is_placed
        carried[~is_lawful] = 0.0
        more = self._rows.beyond_smallest(at)
        batch = take_batches(gpu, carried, more, room)
        has_batch = batch >= 0
        carried_rps = np.where(has_batch, at_batch(carried, batch), 0.0)
        more_mib = np.where(has_batch, at_batch(more.memory_mib, batch), 0.0)
        used_mib = self._rows.min_mib[at] + more_mib
        return DecidedBatches(
            batch=batch,
            carried_rps=carried_rps,
            memory_mib=np.where(is_lawful, used_mib, 0.0),
        )

    def _carried_in_time(
        self, at: Places, gpu: Indices, is_placed: Flags, queued: Reals
    ) -> Reals:
        """(N, J, B) what batches carry; 0 for those that break the SLO."""
        execution_ms = self._execution_ms(at, gpu, is_placed)
        carried = self._carried(execution_ms)
        in_time = self._keeps_slo(execution_ms, is_placed, queued)
        # Where the queue is too long for every batch, the one that carries most ends it soonest.
        without_queue = self._keeps_slo(execution_ms, is_placed, 0.0 * queued)
        in_time |= ~in_time.any(axis=2, keepdims=True) & without_queue
        carried[~in_time] = 0.0
        return carried

    def _obeys(self, room: GpuRooms) -> Flags:
        """(N, K) whether a GPU keeps (1a), (1b) and the limit of replicas."""
        obeys: Flags = (
            (room.sm_percent >= -TOLERANCE)
            & (room.memory_mib >= 0.0)
            & (room.power_w >= 0.0)
            & (room.replicas <= self._max_replicas)
        )
        return obeys

    def rewards(
        self, decided: DecidedBatches, rates_rps: Reals, slots: int | None = None
    ) -> Reals:
        """(N,) eq. 3, over the services of the first `slots` slots (all where None)."""
        carried = self.carried_of_services(decided)
        known = np.unique(self.service_of[:slots])
        wanted = rates_rps[:, known]
        late = late_shares(carried[:, known], wanted)
        gains = np.where(
            wanted > 0.0, carried[:, known] / self.entire_gpu_rps[known], 0.0
        )
        return np.asarray((gains - PENALTY * late).sum(axis=1))

    def carried_of_services(self, decided: DecidedBatches) -> Reals:
        """(N, S) what each service's replicas carry together."""
        return self._by_service(decided.carried_rps)

    def used_mib(self, chosen: Indices, decided: DecidedBatches) -> Reals:
        """(N, K) memory that the replicas take: u_k of the state."""
        gpu, _, is_placed = self._split(chosen)
        used = np.zeros((len(chosen), len(self.setting.gpus)))
        for slot in range(chosen.shape[1]):
            used[np.arange(len(chosen)), gpu[:, slot]] += np.where(
                is_placed[:, slot], decided.memory_mib[:, slot], 0.0
            )
        return used

    def features(
        self,
        chosen: Indices,
        slot: int,
        used_mib: Reals,
        rates_rps: Reals,
        queued: Reals,
    ) -> Reals:
        """(N, F) what the actor sees before the slot chooses: u_k, λ, queues (section 5.2), and what is given away.

        All are near 0 to 1. The last J · K are the SM percents of the slots before, by GPU.
        """
        room = self._room(chosen[:, :slot])
        # Capped at 1: what exceeds one SLO's worth of requests is late in any case.
        queue = np.minimum(1.0, 1000.0 * queued / (self.max_rps * self.slo_ms))
        parts = (
            used_mib / self._memory_mib,
            rates_rps / self.max_rps,
            queue,
            room.sm_percent / 100.0,
            room.memory_mib / self._memory_mib,
            self._given(chosen[:, :slot]).reshape(len(chosen), -1),
        )
        return np.concatenate(parts, axis=1)

    def _given(self, chosen: Indices) -> Reals:
        """(N, J, K) the part of each GPU's SMs that each slot holds; 0 for slots beyond those chosen."""
        gpu, share, is_placed = self._split(chosen)
        given = np.zeros((len(chosen), self.slots, len(self.setting.gpus)))
        rows = np.arange(len(chosen))
        for slot in range(chosen.shape[1]):
            given[rows, slot, gpu[:, slot]] = np.where(
                is_placed[:, slot], self._percents[share[:, slot]] / 100.0, 0.0
            )
        return given

    @property
    def feature_count(self) -> int:
        """F."""
        gpus, services = len(self.setting.gpus), len(self.setting.services)
        return 3 * gpus + 2 * services + self.slots * gpus

    def raw_rps(self, decided: DecidedBatches, chosen: Indices) -> Reals:
        """(N, S) what the replicas execute at most, b / t."""
        gpu, share, is_placed = self._split(chosen)
        at = (np.arange(chosen.shape[1])[None, :], self.type_of[gpu], share)
        times = at_batch(self._execution_ms(at, gpu, is_placed), decided.batch)
        batches = self.batches[np.maximum(decided.batch, 0)]
        rates = np.where(decided.batch >= 0, 1000.0 * batches / times, 0.0)
        return self._by_service(rates)

    def _by_service(self, figures: Reals | Flags) -> Reals:
        """(N, S) sums of figures of slots (N, J)."""
        summed = np.zeros((len(figures), len(self.setting.services)))
        for slot, service in enumerate(self.service_of[: figures.shape[1]]):
            summed[:, service] += figures[:, slot]
        return summed

    def _split(self, chosen: Indices) -> tuple[Indices, Indices, Flags]:
        """GPU, SM percent's place, and whether the slot is anywhere; nowhere counts as the first option."""
        is_placed = chosen < self.options - 1
        gpu, share = np.divmod(np.where(is_placed, chosen, 0), len(self._percents))
        return gpu, share, is_placed

    def _room(self, chosen: Indices) -> GpuRooms:
        """What the smallest batches of these options leave."""
        gpu, share, is_placed = self._split(chosen)
        shape, rows = (len(chosen), len(self.setting.gpus)), np.arange(len(chosen))
        room = GpuRooms(
            sm_percent=np.full(shape, 100.0),
            memory_mib=np.tile(self._memory_mib * (1.0 + TOLERANCE), (shape[0], 1)),
            power_w=np.tile(self._room_w * (1.0 + TOLERANCE), (shape[0], 1)),
            replicas=np.zeros(shape, dtype=np.intp),
        )
        # Slot by slot: two slots on one GPU would write to one cell at once, and one of them be lost.
        for slot in range(chosen.shape[1]):
            on, at, here = gpu[:, slot], share[:, slot], is_placed[:, slot]
            place = (slot, self.type_of[on], at)
            for left, needs in (
                (room.sm_percent, self._percents[at]),
                (room.memory_mib, self._rows.min_mib[place]),
                (room.power_w, self._rows.min_w[place]),
            ):
                left[rows, on] -= np.where(here, needs, 0.0)
            room.replicas[rows, on] += here
        return room

    def _execution_ms(self, at: Places, gpu: Indices, is_placed: Flags) -> Reals:
        """(N, J, B) next to the neighbours at the batches that press most."""
        slot, kind, _ = at
        pressure = np.where(is_placed, self._rows.worst_pressure[at], 0.0)
        neighbours = self._neighbours(gpu, is_placed)
        stretch = 1.0 + self._rows.sensitivity[slot, kind] * self._others(gpu, pressure)
        # Section 4.2: transfer, launches that neighbours delay, and a run that their cache use stretches.
        return np.asarray(
            self._rows.transfer_ms[at]
            + self._rows.launch_ms[at] * self._factors[kind, neighbours][:, :, None]
            + self._rows.run_ms[at] * stretch[:, :, None]
        )

    def _neighbours(self, gpu: Indices, is_placed: Flags) -> Indices:
        others = self._others(gpu, is_placed.astype(float))
        return np.maximum(others + is_placed - 1.0, 0.0).astype(np.intp)

    def _others(self, gpu: Indices, figures: Reals) -> Reals:
        """(N, J) the sum of each slot's neighbours' figures (N, J)."""
        rows = np.arange(len(gpu))
        summed = np.zeros((len(gpu), len(self.setting.gpus)))
        for slot in range(gpu.shape[1]):
            summed[rows, gpu[:, slot]] += figures[:, slot]
        return np.asarray(summed[rows[:, None], gpu] - figures)

    def _carried(self, execution_ms: Reals) -> Reals:
        """(N, J, B) by the capacity law."""
        carried = np.zeros_like(execution_ms)
        for slot, service in enumerate(self.service_of[: execution_ms.shape[1]]):
            for place, batch in enumerate(self.batches):
                times = execution_ms[:, slot, place]
                # Left of the law's grid no request is in time; right of it the law is flat.
                utilisation = np.interp(
                    self.slo_ms[service] / times,
                    self._ratios,
                    self._law[service][place],
                    left=0.0,
                )
                carried[:, slot, place] = 1000.0 * batch / times * utilisation
        return carried

    def _keeps_slo(self, execution_ms: Reals, is_placed: Flags, queued: Reals) -> Flags:
        """(N, J, B) whether a request that comes now is done within the SLO: after the running batch, as those before.

        Eq. 2 without its wait for a full batch: replicas take whatever waits.
        """
        service = self.service_of[: execution_ms.shape[1]]
        placed = self._by_service(is_placed)
        waiting = queued[:, service] / np.maximum(placed[:, service], 1.0) + 1.0
        batches = 1.0 + np.ceil(waiting[:, :, None] / self.batches)
        return np.asarray(batches * execution_ms <= self.slo_ms[service][None, :, None])

    def _entire_gpu_rps(self) -> Reals:
        """(S,) H: what one replica alone executes with the smallest batch, at the best SM percent of the best type."""
        alone = (self._rows.transfer_ms + self._rows.launch_ms + self._rows.run_ms).min(
            axis=(1, 2)
        )
        smallest = (alone < NEVER).argmax(axis=1)
        rates = 1000.0 * self.batches[smallest] / alone[np.arange(self.slots), smallest]
        return np.asarray(np.maximum(rates[:: self.setting.slots], 1e-9))

    def _max_rps(self) -> Reals:
        """(S,) what one replica alone carries at most, at the best SM percent of the best type; at least a trifle."""
        alone = self._rows.transfer_ms + self._rows.launch_ms + self._rows.run_ms
        flat = alone.reshape(self.slots, -1, len(self.batches))
        carried = self._carried(np.moveaxis(flat, 1, 0))
        return np.asarray(
            np.maximum(carried.max(axis=(0, 2))[:: self.setting.slots], 1e-3)
        )


def late_shares(carried_rps: Reals, rates_rps: Reals) -> Reals:
    """v: the share of each service's requests beyond what its replicas carry, 0 to 1; 0 where none come."""
    wanted = np.maximum(rates_rps, 1e-9)
    late = np.clip(1.0 - carried_rps / wanted, 0.0, 1.0)
    return np.asarray(np.where(rates_rps > 0.0, late, 0.0))
