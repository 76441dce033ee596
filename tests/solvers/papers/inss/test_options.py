"""A provision as the options of InSS's world, and back."""

from solvers.papers.inss.options import options_of, provision_of
from solvers.papers.inss.provisioning import Provisioned, Share
from solvers.papers.inss.training.world import ProvisioningWorld
from solvers.papers.inss.training.world_rows import ActorSetting
from tests.solvers.instances import a_problem, a_row, a_service, a_type

ROWS = (a_row(25.0, 20.0), a_row(50.0, 10.0), a_row(100.0, 5.0))


def a_world(slots: int = 2) -> ProvisioningWorld:
    problem = a_problem(
        a_service("a", rate_rps=10.0),
        a_service("b", rate_rps=10.0),
        rows=ROWS,
        types=(a_type(count=2),),
    )
    setting = ActorSetting(
        gpus=("gpu", "gpu"),
        services=("a", "b"),
        slots=slots,
        sm_percents=(25.0, 50.0, 100.0),
    )
    return ProvisioningWorld(problem, setting, clocks_mhz=[1000.0])


def test_there_and_back() -> None:
    provision = (
        Provisioned("gpu", (Share("a", 50.0), Share("b", 25.0))),
        Provisioned("gpu", (Share("a", 100.0),)),
    )
    options = options_of(a_world(), provision)
    assert options.shape == (1, 4)
    # Two slots of a: 50 % of the first GPU is option 1, 100 % of the second one 5; b has 25 % of the first: option 0.
    assert options.tolist() == [[1, 5, 0, 6]]
    assert provision_of(a_world(), options[0]) == provision


def test_nothing_where_the_world_lacks_a_share() -> None:
    world = a_world(slots=1)
    twice = (
        Provisioned("gpu", (Share("a", 50.0),)),
        Provisioned("gpu", (Share("a", 50.0),)),
    )
    assert options_of(world, twice).shape == (0, 2)
    assert options_of(world, (Provisioned("gpu", (Share("a", 75.0),)),)).shape == (0, 2)
    assert options_of(world, (Provisioned("other", (Share("a", 50.0),)),)).shape == (
        0,
        2,
    )
    assert options_of(world, (Provisioned("gpu", (Share("gone", 50.0),)),)).shape == (
        0,
        2,
    )
