"""The five systems: which file has each one's experiments, and which figures say how well it does what it is for."""

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A figure that says how well a policy does what it is for."""

    figure: str
    """Beginning of the rows' figures."""
    is_more: bool
    """Whether more of it is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One paper's system."""

    name: str
    """As `Table.system` has it."""
    module: str
    """File of this folder with `tables(quick) -> tuple[Table, ...]`."""
    policy: str
    """The paper's own, as rows name it."""
    objective: str
    """What the paper's policy is for, in words."""
    aims: tuple[Aim, ...]
    """What measures it; rows of `joint` are laid next to the policy's own."""

    def aim(self, figure: str) -> Aim | None:
        """The first one that a row's figure is of; None: it is there to compare."""
        return next((aim for aim in self.aims if figure.startswith(aim.figure)), None)

    @property
    def is_there(self) -> bool:
        """Whether its experiments are written."""
        return find_spec(f"bench.papers.{self.module}") is not None


SYSTEMS = (
    System(
        name="HetSev",
        module="hetsev",
        policy="hetsev",
        objective="cost of serving within the SLOs, and throughput where GPUs are short",
        aims=(
            Aim(figure="cost ratio, whole GPUs", is_more=True),
            Aim(figure="throughput", is_more=True),
        ),
    ),
    System(
        name="InSS",
        module="inss",
        policy="inss",
        objective="throughput with less than 1 % of requests late",
        aims=(Aim(figure="throughput", is_more=True),),
    ),
    System(
        name="Morak",
        module="morak",
        policy="morak",
        objective="throughput under a power cap and a latency limit",
        aims=(Aim(figure="throughput within both limits", is_more=True),),
    ),
    System(
        name="Mudi",
        module="mudi",
        policy="mudi",
        objective="completion time of training next to services that keep their SLOs",
        aims=(
            Aim(figure="completion time, s", is_more=False),
            Aim(figure="completion at ", is_more=False),
        ),
    ),
    System(
        name="OLTunes",
        module="oltunes",
        policy="oltunes",
        objective="latency, throughput and deadlines of jobs on shared GPUs",
        aims=(
            Aim(figure="p99, ms", is_more=False),
            Aim(figure="throughput, inputs/s", is_more=True),
            Aim(figure="violations, %", is_more=False),
        ),
    ),
)
