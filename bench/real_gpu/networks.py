"""Engines for a bench: torchvision networks, training steps and one kernel in PyTorch; and a fake that sleeps.

    make_network(name, is_fake=…, environment=…) -> Engine

    resnet50, …           batches through a network of torchvision.models with random weights, fp16, channels_last
    train-resnet18, …     steps of SGD on it, bfloat16 autocast, loss = mean of squared outputs
    compute-kernel        matrix products in fp32 that keep all SMs busy; a batch of n is n of them

Nothing is downloaded. Inputs stay in GPU memory, four random sets in turn, and a batch ends when the GPU is done: the
time is that of an execution, without copies from and to the host.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agents.base.device import LaunchFailed
from agents.serving.engines.engine import DeviceFacts, Engine, Signature
from agents.serving.engines.errors import EngineFailed, EngineLost
from agents.serving.engines.sm_count import sm_percent_of
from agents.serving.engines.tensors import Tensors
from agents.serving.engines.timed_engine import MeasuredTimes, TimedEngine

KERNEL = "compute-kernel"
TRAINING = "train-"
INPUT_SETS = 4
KERNEL_SIZE = 8192
"""2 · 8192³ = 1.1e12 operations; 4096 tiles of 128 x 128 leave no SM idle for long at any share."""
MIB = 1024.0 * 1024.0
FAKE_SMS = 132


class _Step(Protocol):
    def __call__(self, number: int) -> object:
        """Put one batch to work on the GPU."""
        ...


def make_network(name: str, *, is_fake: bool, environment: Mapping[str, str]) -> Engine:
    """The engine of that name, not loaded yet."""
    return _fake_engine(name, environment) if is_fake else TorchNetwork(name=name)


@dataclass(slots=True, kw_only=True)
class TorchNetwork:
    """One network in PyTorch on the first visible GPU."""

    name: str
    device: str = "cuda"
    """`cpu`: where there is no GPU to try it on."""
    kernel_size: int = KERNEL_SIZE
    platform: str = "pytorch"
    _torch: Any = field(init=False)
    _network: Any = None
    _step: _Step | None = None
    _recording: Any = None
    _rows: int = 0
    _number: int = 0

    def load(self) -> Signature:
        try:
            self._torch = importlib.import_module("torch")
        except ImportError as error:
            raise LaunchFailed(
                f"PyTorch cannot be imported: {error}; --fake needs none"
            ) from error
        if self._is_cuda and not self._torch.cuda.is_available():
            raise LaunchFailed(
                "PyTorch sees no GPU; is its build for CUDA, and a GPU visible?"
            )
        self._torch.backends.cudnn.benchmark = True
        if self.name != KERNEL:
            self._network = self._placed(
                _torchvision_network(self.name.removeprefix(TRAINING))
            )
        return Signature()

    def warm_up(self, batch: int) -> None:
        self._run(batch)

    def run(self, inputs: Tensors) -> Tensors:
        self._run(inputs[0].rows)
        return inputs

    def facts(self) -> DeviceFacts:
        if not self._is_cuda:
            return DeviceFacts(device=self.device)
        gpu = self._torch.cuda.get_device_properties(0)
        return DeviceFacts(
            device=f"cuda:0 {gpu.name}",
            sm_count=gpu.multi_processor_count,
            memory_mib=self._torch.cuda.memory_reserved(0) / MIB,
        )

    def offload(self) -> None:
        """Give back what the last batch size took; the network stays."""
        self._step, self._rows = None, 0
        if self._is_cuda:
            self._torch.cuda.empty_cache()

    def resume(self) -> None:
        pass

    @property
    def _is_cuda(self) -> bool:
        return self.device == "cuda"

    def _run(self, rows: int) -> None:
        try:
            if rows != self._rows or self._step is None:
                self._step, self._rows = self._make_step(rows), rows
            self._number += 1
            self._step(self._number)
            if self._is_cuda:
                self._torch.cuda.synchronize()
        except self._torch.OutOfMemoryError as error:
            self.offload()
            raise EngineFailed(
                f"{rows} rows of {self.name} do not fit into memory: {error}"
            ) from error
        except RuntimeError as error:
            if "CUDA error" in str(
                error
            ):  # Sticky: every later call of this process fails as well.
                raise EngineLost(
                    f"the GPU does not come back in this process: {error}"
                ) from error
            raise

    def _placed(self, network: Any) -> Any:
        torch = self._torch
        network = network.to(self.device, memory_format=torch.channels_last)
        return (
            network.train() if self.name.startswith(TRAINING) else network.half().eval()
        )

    def _make_step(self, rows: int) -> _Step:
        if self.name == KERNEL:
            return self._kernel_step(rows)
        torch, pixels = self._torch, _pixels(self.name)
        is_training = self.name.startswith(TRAINING)
        dtype = torch.float32 if is_training else torch.float16
        images = [
            torch.randn(rows, 3, pixels, pixels, device=self.device, dtype=dtype).to(
                memory_format=torch.channels_last
            )
            for _ in range(INPUT_SETS)
        ]
        return (
            self._training_step(images) if is_training else self._inference_step(images)
        )

    def _inference_step(self, images: list[Any]) -> _Step:
        torch = self._torch

        def step(number: int) -> object:
            with torch.inference_mode():
                return self._network(images[number % INPUT_SETS])

        if not self._is_cuda:
            return step
        # A fast GPU waits for Python's launches, whose times never settle: recorded once and replayed as graphs,
        # a batch takes what the GPU needs for it.
        # One stream for all batch sizes: cuBLAS keeps a workspace for each that it ever saw.
        stream = self._recording = self._recording or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for number in range(INPUT_SETS):
                step(number)
        torch.cuda.synchronize()
        graphs = [torch.cuda.CUDAGraph() for _ in images]
        for number, graph in enumerate(graphs):
            pool = graphs[0].pool() if number else None
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                step(number)
        return lambda number: graphs[number % INPUT_SETS].replay()

    def _training_step(self, images: list[Any]) -> _Step:
        torch = self._torch
        optimiser = torch.optim.SGD(self._network.parameters(), 1e-4, foreach=True)

        def step(number: int) -> object:
            with torch.autocast(self.device, dtype=torch.bfloat16):
                answer = self._network(images[number % INPUT_SETS])
            loss = answer.float().square().mean()
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            return loss

        return step

    def _kernel_step(self, rows: int) -> _Step:
        torch = self._torch
        torch.backends.cuda.matmul.allow_tf32 = False
        one, other, result = (
            torch.randn(self.kernel_size, self.kernel_size, device=self.device)
            for _ in range(3)
        )

        def step(number: int) -> object:  # noqa: ARG001  always the same matrices
            for _ in range(rows):
                torch.mm(one, other, out=result)
            return result

        return step


def _torchvision_network(name: str) -> Any:
    try:
        networks = importlib.import_module("torchvision.models")
    except ImportError as error:
        raise LaunchFailed(
            f"torchvision cannot be imported: {error}; --fake needs none"
        ) from error
    make: Callable[..., Any] | None = getattr(networks, name, None)
    if make is None or name.startswith("_"):
        raise LaunchFailed(f"torchvision.models has no network {name!r}")
    extra = (
        {"init_weights": False, "aux_logits": False} if name == "inception_v3" else {}
    )
    return make(weights=None, **extra)


def _pixels(name: str) -> int:
    return 299 if name.endswith("inception_v3") else 224


def _fake_engine(name: str, environment: Mapping[str, str]) -> TimedEngine:
    """Times of 2 ms and a row's work, which takes the longer the fewer SMs there are; networks stop to gain at 60 %,
    the kernel never does."""
    share = (sm_percent_of(environment) or 100.0) / 100.0
    if name == KERNEL:
        floor_ms, row_ms = 0.0, 4.0 / share
    else:
        floor_ms, row_ms = (
            2.0,
            (0.2 if name.startswith(TRAINING) else 0.1) * 0.6 / min(share, 0.6),
        )
    points = ((1, floor_ms + row_ms), (2, floor_ms + 2.0 * row_ms))
    return TimedEngine(
        times=MeasuredTimes(points),
        sms=FAKE_SMS,
        memory_mib=500.0,
        environment=environment,
    )
