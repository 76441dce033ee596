"""Which degrees of tensor parallelism an engine starts with: everything that its GPUs share out must be divisible."""

from collections.abc import Iterator
from dataclasses import dataclass

from solvers.llm.architecture import Architecture
from solvers.llm.configs.parts import Split

DENSE, EXPERT = "columns of intermediate_size", "columns of each expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undivided:
    """The first thing that so many GPUs cannot share out."""

    split: Split
    tp: int

    @property
    def reason(self) -> str:
        """What cannot be divided by what, in words."""
        split, tp = self.split, self.tp
        found = f"{split.count} {split.what}"
        if split.may_be_cut:
            return f"{found} are fewer than {tp} GPUs"
        if split.may_be_copied and split.count % tp and tp % split.count:
            return f"{found} can neither be divided by {tp} nor copied"
        if split.count % tp and not split.may_be_copied:
            return f"{found} cannot be divided by {tp}"
        return f"{found}, divided by {tp}, cut through the quantisation's blocks of {split.block}"


def undivided(network: Architecture, tp: int) -> Undivided | None:
    """What keeps an engine from starting on `tp` GPUs; None: nothing, as on one GPU."""
    if tp == 1:
        return None
    for split in _splits(network):
        if not _fits(split, tp):
            return Undivided(split=split, tp=tp)
    return None


def _splits(network: Architecture) -> Iterator[Split]:
    """Heads first: they are what users know."""
    if not network.attention:
        yield Split(what="heads", count=network.heads)
        # Compressed keys serve all heads, and every GPU holds all of them.
        if network.compressed_keys is None:
            yield Split(what="KV heads", count=network.kv_heads, may_be_copied=True)
    for group in network.attention:
        yield Split(what="heads", count=group.heads)
        yield Split(what="KV heads", count=group.kv_heads, may_be_copied=True)
    if network.dense_layers and network.dense_intermediate:
        yield Split(what=DENSE, count=network.dense_intermediate)
    experts = network.experts
    if experts:
        yield Split(what="experts", count=experts.count, may_be_cut=True)
        yield Split(what=EXPERT, count=experts.intermediate)
    yield from network.splits


def _fits(split: Split, tp: int) -> bool:
    if split.count == 1 and split.may_be_one:
        return True
    if split.may_be_cut:
        return split.count >= tp
    is_copied = split.may_be_copied and split.count < tp
    remainder = tp % split.count if is_copied else split.count % tp
    if remainder:
        return False
    part = 1 if is_copied else split.count // tp
    return part * split.unit % split.block == 0
