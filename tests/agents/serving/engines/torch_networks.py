"""Networks for tests, made by functions as those of torchvision.models are."""

from typing import Any

import torch


class Line(torch.nn.Module):  # type: ignore[misc]
    """weight · x + bias: 2x + 1 until other weights are loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0))
        self.register_buffer("bias", torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x + self.bias


class Dropping(torch.nn.Module):  # type: ignore[misc]
    """Gives zeros unless it was told that it is not trained."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, p=1.0, training=self.training)


class Calling(torch.nn.Module):  # type: ignore[misc]
    """Calls a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def _lost(x: torch.Tensor) -> torch.Tensor:
    if x.abs().sum() == 0:
        return x  # The warm-up does well.
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def line() -> Line:
    return Line()


def dropping() -> Dropping:
    return Dropping()


def several() -> Calling:
    return Calling(lambda x: (x > 1.0, x.long()))


def lost() -> Calling:
    return Calling(_lost)


def broken() -> Line:
    raise ValueError("this network cannot be made")
