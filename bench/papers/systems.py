"""The five systems: which file has each one's experiments, and which figures say how well it does what it is for."""

from dataclasses import dataclass
from importlib.util import find_spec


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
    figures: tuple[str, ...]
    """Beginnings of the rows' figures that measure it; those of rows of `joint` are laid beside the policy's own."""

    @property
    def is_there(self) -> bool:
        """Whether its experiments are written."""
        return find_spec(f"bench.papers.{self.module}") is not None


SYSTEMS = (
    System(
        name="HetSev",
        module="hetsev",
        policy="hetsev",
        objective="cost of serving within the SLOs",
        figures=("cost ratio, whole GPUs", "cost, USD"),
    ),
    System(
        name="InSS",
        module="inss",
        policy="inss",
        objective="throughput with less than 1 % of requests late",
        figures=("throughput",),
    ),
    System(
        name="Morak",
        module="morak",
        policy="morak",
        objective="throughput under a power cap and a latency limit",
        figures=("throughput",),
    ),
    System(
        name="Mudi",
        module="mudi",
        policy="mudi",
        objective="completion time of training beside services that keep their SLOs",
        figures=("completion",),
    ),
    System(
        name="OLTunes",
        module="oltunes",
        policy="oltunes",
        objective="latency and throughput of jobs on shared GPUs",
        figures=("p99", "throughput"),
    ),
)
