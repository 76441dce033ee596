"""Which degrees of tensor parallelism an engine starts with: everything that its GPUs share out must be divisible."""

from collections.abc import Iterable
from dataclasses import dataclass

from solvers.llm.configs.parts import DividedPart

DENSE, EXPERT = "columns of intermediate_size", "columns of each expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undivided:
    """The first thing that this number of GPUs cannot share out."""

    part: DividedPart
    tp: int

    @property
    def reason(self) -> str:
        """It says what cannot be divided by how many."""
        part, tp = self.part, self.tp
        found = f"{part.count} {part.what}"
        if part.may_be_cut:
            return f"{found} are fewer than {tp} GPUs"
        if part.may_be_copied and part.count % tp and tp % part.count:
            return f"{found} can neither be divided by {tp} nor copied"
        if part.count % tp and not part.may_be_copied:
            return f"{found} cannot be divided by {tp}"
        return f"{found}, divided by {tp}, cut through the quantisation's blocks of {part.block}"


def first_undivided(parts: Iterable[DividedPart], tp: int) -> Undivided | None:
    """What keeps an engine from starting on `tp` GPUs; None: nothing, as on one GPU."""
    # A single GPU holds everything, whatever the blocks are.
    if tp == 1:
        return None
    for part in parts:
        if not _fits(part, tp):
            return Undivided(part=part, tp=tp)
    return None


def _fits(part: DividedPart, tp: int) -> bool:
    if part.count == 1 and part.may_be_one:
        return True
    if part.may_be_cut or not part.count:
        return not part.count or part.count >= tp
    # With more GPUs than heads of keys, each head is on several GPUs.
    is_copied = part.may_be_copied and part.count < tp
    remainder = tp % part.count if is_copied else part.count % tp
    if remainder:
        return False
    held = 1 if is_copied else part.count // tp
    return held * part.unit % part.block == 0
