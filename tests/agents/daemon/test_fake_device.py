"""The fake device, as far as it goes without HTTP."""

import msgspec
import pytest

from agents.base.clock import ManualClock
from agents.base.device import LaunchFailed, NotSupported
from agents.daemon.build import make_device
from agents.main import make_parser
from tests.agents.factories import GPU_TYPE, a_replica, run

ARGUMENTS = ["--url", "http://localhost", "--device", "fake", "--gpu-type", GPU_TYPE]


def test_unmeasured_networks_cannot_start_and_fake_gpus_are_not_governed() -> None:
    device = make_device(make_parser().parse_args(ARGUMENTS), ManualClock())
    unknown = msgspec.structs.replace(a_replica(), network="no-such-network")
    with pytest.raises(LaunchFailed, match="no-such-network"):
        run(device.start_replica(0, unknown))
    assert run(device.state()).gpus[0].replicas == ()
    with pytest.raises(NotSupported, match="GPU 0 cannot be governed: fake GPUs draw"):
        run(device.poll(0))


@pytest.mark.parametrize("name", ["N1", "n1.example", "-n1", "n" * 64, ""])
def test_a_node_that_the_control_plane_would_not_take_is_refused_at_once(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args([*ARGUMENTS, f"--node={name}"])
    assert (
        "must be lower-case letters, digits and dashes, 63 at most"
        in capsys.readouterr().err
    )
