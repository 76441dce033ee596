"""GPUs that can be cut into slices: A100's profiles, and tiny problems in which some GPUs are cut and some are not."""

import random
from dataclasses import replace

from solvers.types.problem import Problem
from solvers.types.slices import SlicePoint, SlicePoints, SliceProfile
from solvers.types.state import GpuType
from tests.solvers.problems import tiny_problem


def _profile(name: str, gpcs: int, memory: int, *starts: int) -> SliceProfile:
    return SliceProfile(
        name=name,
        gpcs=gpcs,
        memory_slices=memory,
        starts=starts,
        memory_mib=9_856.0 * memory,
    )


A100_PROFILES = (
    _profile("1g.10gb", 1, 1, *range(7)),
    _profile("2g.20gb", 2, 2, 0, 2, 4),
    _profile("3g.40gb", 3, 4, 0, 4),
    _profile("4g.40gb", 4, 4, 0),
    _profile("7g.80gb", 7, 8, 0),
)
"""As NVIDIA's MIG user guide places them."""


def halves_and_whole(memory_mib: float) -> tuple[SliceProfile, ...]:
    """Two slices, or one, of a GPU with so much memory."""
    shapes = (("half", 1, (0, 1)), ("whole", 2, (0,)))
    return tuple(
        SliceProfile(
            name=name,
            gpcs=size,
            memory_slices=size,
            starts=starts,
            memory_mib=memory_mib * size / 2.0,
        )
        for name, size, starts in shapes
    )


def tiny_sliced_problem(seed: int, *, is_beside: bool) -> Problem:
    """A tiny problem whose big GPUs are cut in halves; the small ones, too, unless whole GPUs stand next to them.

    Where they do, a big GPU may stay whole with some seeds.
    """
    draw = random.Random(seed)
    problem = tiny_problem(seed, services=2)
    sliced = {"big"} if is_beside else {"big", "small"}
    types = tuple(
        _cut(each, may_stay_whole=is_beside and draw.random() < 0.5)
        if each.name in sliced
        else each
        for each in problem.gpu_types
    )
    capped = {each.name for each in types if not each.is_sliced_only}
    return replace(
        problem,
        gpu_types=types,
        points=tuple(each for each in problem.points if each.gpu_type in capped),
        slice_points=tuple(
            SlicePoints(
                network=f"net{number}",
                gpu_type=gpu_type.name,
                profile=profile.name,
                rows=_rows(draw, profile.gpcs),
            )
            for number in range(2)
            for gpu_type in types
            for profile in gpu_type.slices
        ),
    )


def _cut(gpu_type: GpuType, *, may_stay_whole: bool) -> GpuType:
    gpu_type = replace(gpu_type, slices=halves_and_whole(gpu_type.memory_mib))
    if may_stay_whole:
        return gpu_type
    # What no document can state of GPUs that are all cut.
    return replace(
        gpu_type,
        is_sliced_only=True,
        sm_percent_step=100.0,
        launch_per_neighbour=0.0,
        launch_base=0.0,
    )


def _rows(draw: random.Random, gpcs: int) -> tuple[SlicePoint, ...]:
    """Two ways; no row is above its part of the watts of any tiny type."""
    shapes = draw.sample([(1, 1), (4, 1), (1, 2), (4, 2)], 2)
    work_ms = draw.uniform(4.0, 20.0) / gpcs
    return tuple(
        SlicePoint(
            batch,
            processes,
            1000.0,
            work_ms * (1.0 + 0.3 * batch) * (0.5 + 0.4 * processes),
            draw.choice((2_000.0, 3_000.0)) * processes,
            gpcs * draw.uniform(10.0, 40.0),
        )
        for batch, processes in shapes
    )
