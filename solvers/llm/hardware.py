"""What predictions of language models know of a GPU type: its data sheet, and how much of it kernels reach."""

from collections.abc import Mapping
from dataclasses import dataclass

from solvers.llm.architecture import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEfficiency:
    """Shares, 0 to 1, of a GPU's bandwidth and of its peak that kernels reach, as measured for one precision."""

    gemm_bandwidth: float
    gemm_flops: float
    expert_bandwidth: float
    expert_flops: float
    prompt_attention_flops: float
    decode_attention_bandwidth: float


USUAL = KernelEfficiency(
    gemm_bandwidth=0.75,
    gemm_flops=0.7,
    expert_bandwidth=0.85,
    expert_flops=0.3,
    prompt_attention_flops=0.45,
    decode_attention_bandwidth=0.75,
)
"""A GPU type whose kernels were not measured has about the mean of those that were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmHardware:
    """One GPU type with its links to others of its node. Peaks are dense, without structured sparsity."""

    memory_gib: float
    memory_gb_per_s: float
    bf16_tflops: float
    fp8_tflops: float | None = None
    """None = the type computes 8-bit weights in bf16; the same for 4 bits, which are then computed in 8."""
    fp4_tflops: float | None = None
    link_gb_per_s: float | None = None
    """From one GPU to another, one way; None = a replica cannot span GPUs."""
    gpus_per_node: int = 1
    efficiency: Mapping[Precision, KernelEfficiency] | None = None
    """None = `USUAL`; a precision that is missing has that of bf16."""

    def tflops(self, precision: Precision) -> float:
        """The peak at which linear layers of that precision are computed."""
        by_precision = {
            "fp8": self.fp8_tflops,
            "fp4": self.fp4_tflops or self.fp8_tflops,
        }
        # Weights of 4-bit integers are unpacked to bf16 before they are multiplied.
        return by_precision.get(precision) or self.bf16_tflops

    def efficiency_of(self, precision: Precision) -> KernelEfficiency:
        """What kernels of that precision reach."""
        known = self.efficiency or {}
        return known.get(precision) or known.get("bf16") or USUAL
