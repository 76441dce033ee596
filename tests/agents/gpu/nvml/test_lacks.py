"""What a GPU lacks, as kinds, through the real NVML binding against the fake driver."""

from collections.abc import Iterator

import pytest

from agents.gpu.nvml.capabilities import find_abilities
from agents.gpu.nvml.lacks import LackKind
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import Capability
from tests.agents.fakes.nvml import fake_gpus
from tests.agents.fakes.nvml.fake_gpus import FakeGpus
from tests.agents.fakes.nvml.fixtures import fake, library

__all__ = ("fake", "library")


@pytest.fixture
def nvml(fake: FakeGpus) -> Iterator[Nvml]:
    with Nvml() as opened:
        yield opened


@pytest.mark.parametrize(
    ("code", "kind", "detail"),
    [
        (3, LackKind.OTHER, "this GPU does not have it"),
        (4, LackKind.RIGHT_MISSING, "it needs CAP_SYS_ADMIN"),
        (13, LackKind.DRIVER_TOO_OLD, "the installed driver is too old for it"),
        (17, LackKind.DEVICE_BLOCKED, "the operating system blocks the device; "),
        (12345, LackKind.OTHER, "NVML answered 12345; try again"),
    ],
)
def test_each_lack_has_its_kind(
    nvml: Nvml, fake: FakeGpus, code: int, kind: LackKind, detail: str
) -> None:
    fake.fail("nvmlDeviceGetMPSComputeRunningProcesses_v3", code)
    gpu = nvml.gpus()[0]
    lacks = find_abilities(nvml, gpu, try_writes=True).lacks
    found = next(each for each in lacks if each.capability is Capability.LIST_MPS)
    assert (found.kind, found.detail.startswith(detail)) == (kind, True)
    assert (
        found.message
        == f"could not {Capability.LIST_MPS} of GPU 0 (GPU-0): {found.detail}"
    )


def test_persistence_mode_that_is_off_is_a_kind_of_its_own(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.gpu(0).without = fake_gpus.NO_PERSISTENCE
    (lack,) = find_abilities(nvml, nvml.gpus()[0], try_writes=True).lacks
    assert lack.kind is LackKind.PERSISTENCE_OFF
    assert (
        lack.detail
        == "without clients the driver may drop them; run nvidia-persistenced"
    )
    assert lack.message == f"persistence mode is off: {lack.detail}"
