"""PyTorch for `plimsoll trainer`: networks with random weights, trained or run on random data.

The network is made by a function of one module, such as torchvision.models. One batch of data is made once and used for
every step: what is measured and shared is the GPU's work, not the data's.
"""

import argparse
import importlib
from itertools import chain
from pathlib import Path
from typing import Any

from agents.base.device import LaunchFailed
from agents.serving.engines.torch_engine import DTYPES, MIB, read_kind
from agents.trainer.work import kept_iterations

SUFFIX = "-training"
"""The end of the name of a network that is trained; its function's name has none."""


class TorchWork:
    """One network on the first visible GPU, or on the CPU. See `agents.trainer.trainer.Work`."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Load it, and what an earlier process kept. Raises LaunchFailed."""
        try:
            import torch
        except ImportError as error:
            raise LaunchFailed(
                f"PyTorch cannot be imported ({error}); install the extra rl"
            ) from error
        # PyTorch is an extra and untyped here; it does not leave this file.
        self._torch: Any = torch
        self._state_file: Path | None = (
            options.checkpoint
            and options.checkpoint.with_name(f"{options.checkpoint.name}.pt")
        )
        self._network_name, self._is_training = (
            options.network,
            options.kind == "training",
        )
        self._place = self._take_device(options)
        self._network: Any = self._made(options)
        self._optimiser: Any = torch.optim.SGD(
            self._network.parameters(), lr=0.01, momentum=0.9
        )
        self._make_data(options)
        self.start_iterations = (
            self._load() if self._is_training else self._without_state(options)
        )

    @property
    def sm_count(self) -> int | None:
        if self._place == "cpu":
            return None
        return int(self._torch.cuda.get_device_properties(0).multi_processor_count)

    def step(self) -> None:
        if not self._is_training:
            with self._torch.inference_mode():
                self._network(self._data)
        else:
            self._optimiser.zero_grad(set_to_none=True)
            loss = self._torch.nn.functional.cross_entropy(
                _first(self._network(self._data)), self._labels
            )
            loss.backward()
            self._optimiser.step()
        if self._place != "cpu":
            self._torch.cuda.synchronize()  # A step that is only queued has not been done.

    def keep(self, done_iterations: int) -> None:
        if self._state_file is None or not self._is_training:
            return
        fresh = self._state_file.with_name(f"{self._state_file.name}.new")
        state = {
            "network_name": self._network_name,
            "done_iterations": done_iterations,
            "network": self._network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
        }
        self._torch.save(state, fresh)
        # Renamed when it is complete: a process that dies while it writes leaves the old state.
        fresh.replace(self._state_file)

    def offload(self) -> None:
        """Copy everything to pinned host memory and give the device's back; the context stays."""
        self._optimiser.zero_grad(set_to_none=True)
        for tensor in self._tensors():
            pinned = self._place != "cpu"
            host = self._torch.empty(
                tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned
            )
            tensor.data = host.copy_(tensor.data)
        if self._place != "cpu":
            # Without it the allocator would keep the memory, and no other process could use it.
            self._torch.cuda.empty_cache()

    def resume(self) -> None:
        for tensor in self._tensors():
            tensor.data = tensor.data.to(self._place)

    def _tensors(self) -> list[Any]:
        states = (
            value
            for state in self._optimiser.state.values()
            for value in state.values()
        )
        kept = (value for value in states if isinstance(value, self._torch.Tensor))
        return [
            *chain(self._network.parameters(), self._network.buffers()),
            *kept,
            self._data,
            self._labels,
        ]

    def _take_device(self, options: argparse.Namespace) -> str:
        has_gpu = self._torch.cuda.is_available()
        if options.device == "cuda" and not has_gpu:
            raise LaunchFailed(
                "PyTorch sees no GPU; check that it was built for CUDA and that a GPU is visible"
            )
        if not has_gpu or options.device == "cpu":
            return "cpu"
        if options.memory_mib:
            total = self._torch.cuda.get_device_properties(0).total_memory
            self._torch.cuda.set_per_process_memory_fraction(
                min(1.0, options.memory_mib * MIB / total), 0
            )
        return "cuda:0"

    def _made(self, options: argparse.Namespace) -> Any:
        name = options.network.removesuffix(SUFFIX)
        try:
            found = getattr(importlib.import_module(options.factory_module), name, None)
        except ImportError as error:
            raise LaunchFailed(
                f"module {options.factory_module} cannot be imported: {error}"
            ) from error
        if name.startswith("_") or not callable(found):
            raise LaunchFailed(
                f"module {options.factory_module} has no public function {name!r} that makes a network"
            )
        try:
            return found().to(self._place).train(self._is_training)
        except Exception as error:  # What a network's own code raises is its own.
            raise LaunchFailed(f"network {name} cannot be loaded: {error}") from error

    def _make_data(self, options: argparse.Namespace) -> None:
        kind = read_kind(options.input)
        dtype = getattr(self._torch, DTYPES[kind.datatype])
        self._data = self._torch.randn(
            (options.batch, *kind.row_shape), device=self._place
        ).to(dtype)
        # One class for all: the work of a step does not depend on what is learned.
        self._labels = self._torch.zeros(
            options.batch, dtype=self._torch.int64, device=self._place
        )

    def _load(self) -> int:
        """Iterations that the state on disk holds, which is taken over; 0 without one."""
        if self._state_file is None or not self._state_file.exists():
            return 0
        try:
            state = self._torch.load(
                self._state_file, map_location=self._place, weights_only=True
            )
            if state["network_name"] != self._network_name:
                raise LaunchFailed(
                    f"{self._state_file} is of network {state['network_name']}"
                )
            self._network.load_state_dict(state["network"])
            self._optimiser.load_state_dict(state["optimiser"])
            return int(state["done_iterations"])
        except LaunchFailed:
            raise
        except (
            Exception
        ) as error:  # A damaged file fails in as many ways as it has parts.
            raise LaunchFailed(
                f"checkpoint {self._state_file} cannot be read, remove it: {error}"
            ) from error

    def _without_state(self, options: argparse.Namespace) -> int:
        return max(int(options.done_iterations), kept_iterations(options))


def _first(output: Any) -> Any:
    """The scores: networks with auxiliary outputs give several, the first of which counts."""
    return output[0] if isinstance(output, tuple) else output
