"""What a fleet is made of: kinds of GPUs with their price, and nodes."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from app.manifests.parts import Amount, Money, Size, Strict, TypeName
from solvers.types.state import ALL_PAID


class DataSheet(Strict):
    """What the maker states that language models run by. Peaks are dense, without structured sparsity."""

    memory_gb_per_s: Size
    bf16_tflops: Size
    fp8_tflops: Size | None = Field(
        default=None, description="Absent: 8-bit weights are computed in bf16"
    )
    fp4_tflops: Size | None = Field(
        default=None, description="Absent: 4-bit weights are computed in 8 bits"
    )
    link_gb_per_s: Size | None = Field(
        default=None,
        description="From one GPU to another of the node, one way. Absent: a replica cannot span GPUs",
    )


class GpuTypeSpec(Strict):
    """One kind of GPU and its price."""

    price_usd_per_hour: Money = Field(
        description="Price of one whole GPU from now on; earlier hours keep their price"
    )
    memory_mib: Size
    sm_count: int | None = Field(default=None, ge=1, le=10_000)
    sm_percent_step: float = Field(default=10.0, gt=0, le=100, allow_inf_nan=False)
    idle_w: Amount
    power_cap_w: Size
    clocks_mhz: list[Size] = Field(min_length=1, max_length=256)
    launch_per_neighbour: Amount = 0.0
    launch_base: Amount = 0.0
    llm: DataSheet | None = Field(
        default=None,
        description="For language models. Absent: as shipped for a type of this name",
    )
    paid: Annotated[int, Field(ge=0, le=ALL_PAID)] | Literal["all"] = Field(
        default=0,
        description="GPUs of it that are paid for, used or not. 0: all are rented by the hour; all: all "
        "are owned; a number: that many are reserved. Plans pay only for GPUs beyond it",
    )

    @field_validator("paid", mode="before")
    @classmethod
    def _count_or_all(cls, paid: Any) -> Any:
        # One complaint, where each part of the union would have its own.
        is_count = isinstance(paid, int) and not isinstance(paid, bool)
        if paid == "all" or (is_count and 0 <= paid <= ALL_PAID):
            return paid
        raise ValueError(f"must be all or a number of GPUs, 0 or more, not {paid!r}")

    @field_validator("clocks_mhz")
    @classmethod
    def _ascending(cls, clocks: list[float]) -> list[float]:
        # Planning takes the first as the lowest and the last as the highest.
        if sorted(set(clocks)) != clocks:
            raise ValueError("must ascend without repeats")
        return clocks


class NodeGpu(Strict):
    """One GPU of a node."""

    index: int = Field(
        ge=0,
        le=64_999,
        description="As the agent counts; slices of GPU 0 (MIG) begin at 1000",
    )
    gpu_type: TypeName


class NodeSpec(Strict):
    """One machine with GPUs."""

    gpus: list[NodeGpu] = Field(default_factory=list, max_length=128)
    cordoned: bool = Field(
        default=False,
        description="Nothing new starts here; running replicas and tasks stay",
    )
    power_cap_w: Size | None = Field(
        default=None,
        description="Limit in watts for all its GPUs in use, including their idle power. Absent: no limit",
    )

    @field_validator("gpus")
    @classmethod
    def _unique_indices(cls, gpus: list[NodeGpu]) -> list[NodeGpu]:
        # Commands name GPUs by their index.
        if len({gpu.index for gpu in gpus}) < len(gpus):
            raise ValueError("two GPUs have the same index")
        # In whatever order they are written, they are the same GPUs.
        return sorted(gpus, key=lambda gpu: gpu.index)
