"""Counts the layers of torchvision's classification networks: writes app/catalogue/data/layers.csv.

    python -m venv /tmp/layers && /tmp/layers/bin/pip install torch==2.13.0 numpy pillow
    /tmp/layers/bin/pip install --no-deps torchvision==0.29.2
    /tmp/layers/bin/python bench/count_layers.py > app/catalogue/data/layers.csv

Every network runs once, without weights, on one image of 224 x 224 on torch's "meta" device, where tensors have shapes
and no values. Counted are the operators that would start a kernel (views start none). Multiply-accumulates are those of
convolutions and matrix products; activations are the outputs of convolutions, whose number follows the run time on a
GPU better than the multiply-accumulates do (Radosavovic et al., "Designing Network Design Spaces", 2020, section 3.4).
"""

import csv
import sys
import types
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# torchvision's compiled operators (boxes, JPEG) are not needed here, and their build must match torch's.
sys.modules["torchvision._meta_registrations"] = types.ModuleType(
    "torchvision._meta_registrations"
)
import torchvision  # noqa: E402

IMAGE = (1, 3, 224, 224)

KINDS = {
    "linear": ("addmm", "mm", "bmm", "baddbmm", "linear"),
    "normalisation": (
        "native_batch_norm",
        "_native_batch_norm_legit_no_training",
        "cudnn_batch_norm",
        "batch_norm",
        "native_layer_norm",
    ),
    "activation": (
        "relu",
        "relu_",
        "hardtanh",
        "hardtanh_",
        "silu",
        "silu_",
        "hardswish",
        "hardswish_",
        "hardsigmoid",
        "hardsigmoid_",
        "gelu",
        "sigmoid",
        "sigmoid_",
    ),
    "pooling": (
        "max_pool2d_with_indices",
        "avg_pool2d",
        "_adaptive_avg_pool2d",
        "mean",
    ),
    "attention": (
        "_softmax",
        "_scaled_dot_product_flash_attention_for_cpu",
        "scaled_dot_product_attention",
        "_scaled_dot_product_attention_math_for_mps",
        "_scaled_dot_product_fused_attention_overrideable",
    ),
    "elementwise": ("add", "add_", "mul", "mul_", "div", "div_", "cat"),
}
CONVOLUTIONS = ("convolution", "depthwise_convolution", "grouped_convolution")
OTHER_FIGURES = ("parameters_millions", "gmacs", "activations_millions")


def main() -> None:
    """Write the CSV to standard output."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("network", *CONVOLUTIONS, *KINDS, *OTHER_FIGURES))
    for name in torchvision.models.list_models(module=torchvision.models):
        network = torchvision.models.get_model(name, weights=None).eval().to("meta")
        with torch.no_grad(), LayerCounter() as counter:
            network(torch.empty(IMAGE, device="meta"))
        # The auxiliary classifiers of GoogLeNet and Inception serve training only.
        parameters = sum(
            weight.numel()
            for key, weight in network.named_parameters()
            if "aux" not in key.lower()
        )
        figures = (
            f"{parameters / 1e6:.2f}",
            f"{counter.macs / 1e9:.3f}",
            f"{counter.activations / 1e6:.2f}",
        )
        writer.writerow(
            (
                name,
                *(counter.counts[kind] for kind in (*CONVOLUTIONS, *KINDS)),
                *figures,
            )
        )


class LayerCounter(TorchDispatchMode):
    """Counts the operators that run while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.macs = self.activations = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        if name == "convolution":
            self._count_convolution(args[0], args[1], output, groups=args[8])
        else:
            self.counts[
                next((kind for kind, names in KINDS.items() if name in names), "other")
            ] += 1
        if name in ("addmm", "baddbmm"):
            self.macs += output.numel() * args[1].shape[-1]
        elif name in ("mm", "bmm"):
            self.macs += output.numel() * args[0].shape[-1]
        return output

    def _count_convolution(
        self, image: Any, weight: Any, output: Any, *, groups: int
    ) -> None:
        channels = image.shape[1]
        kind = (
            "convolution"
            if groups == 1
            else "depthwise_convolution"
            if groups == channels
            else "grouped_convolution"
        )
        self.counts[kind] += 1
        self.activations += output.numel()
        self.macs += output.numel() * weight[0].numel()


if __name__ == "__main__":
    main()
