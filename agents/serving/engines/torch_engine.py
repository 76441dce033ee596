"""PyTorch: a TorchScript file, an exported program (.pt2), or a network made by a function of a module.

Files come from one directory only (`engine.file_in`), functions from one module only, such as torchvision.models; their
weights are read with `weights_only`, so that they cannot run code. A TorchScript file is a program: the writer of
that directory decides what runs. PyTorch is imported when the engine is loaded; it comes with extra `rl`.
"""

import argparse
import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from agents.base.device import LaunchFailed
from agents.serving.engines.engine import DeviceFacts, Signature, file_in
from agents.serving.engines.errors import EngineFailed, EngineLost
from agents.serving.engines.tensors import Tensor, Tensors, TensorType, byte_count

DTYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
"""PyTorch's names; its wider unsigned types have hardly any operation."""

MIB = 1024.0 * 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSource:
    """Where a network comes from."""

    network: str
    """A file in `directory`, or with a factory module one of its functions."""
    directory: Path | None = None
    factory_module: str | None = None
    weights: str | None = None
    """A state dictionary in `directory`, for a factory's network."""


def make_torch_engine(options: argparse.Namespace) -> "TorchEngine":
    """The engine of some arguments. Raises LaunchFailed."""
    if not options.input:
        raise LaunchFailed(
            "PyTorch does not know the inputs of a network; give --input, e.g. x:FP32:3,224,224"
        )
    source = TorchSource(
        network=options.network,
        directory=options.network_dir,
        factory_module=options.factory_module,
        weights=options.weights,
    )
    return TorchEngine(
        source=source,
        inputs=tuple(map(read_kind, options.input)),
        device=options.device,
        memory_mib=options.memory_mib,
        threads=options.threads,
    )


def read_kind(text: str) -> TensorType:
    """The input of `x:FP32:3,224,224`; without dimensions each row is one number. Raises LaunchFailed."""
    name, _, rest = text.partition(":")
    datatype, _, shape = rest.partition(":")
    dimensions = [each.strip() for each in shape.split(",")] if shape else []
    if (
        not name
        or datatype not in DTYPES
        or not all(each.isdecimal() and int(each) > 0 for each in dimensions)
    ):
        raise LaunchFailed(
            f"{text!r} is not an input like x:FP32:3,224,224 (datatypes: {', '.join(DTYPES)})"
        )
    return TensorType(
        name=name, datatype=datatype, row_shape=tuple(map(int, dimensions))
    )


@dataclass(slots=True, kw_only=True)
class TorchEngine:
    """One network in PyTorch on the first visible GPU, or on the CPU."""

    source: TorchSource
    inputs: tuple[TensorType, ...]
    device: str = "auto"
    memory_mib: float | None = None
    threads: int = 1
    platform: str = "pytorch"
    # PyTorch is an extra and untyped here; neither leaves this file.
    _torch: Any = field(init=False)
    _network: Any = field(init=False)
    _is_cuda: bool = field(init=False, default=False)

    def load(self) -> Signature:
        try:
            import torch
        except ImportError as error:
            raise LaunchFailed(
                f"PyTorch cannot be imported ({error}); install the extra rl"
            ) from error
        self._torch = torch
        # By default PyTorch takes all cores, also those of the node's other replicas.
        torch.set_num_threads(self.threads)
        self._take_device()
        try:
            self._network = self._made().to(self._place, self._dtype())
        except LaunchFailed:
            raise
        except Exception as error:  # What a network's own code raises is its own.
            raise LaunchFailed(
                f"network {self.source.network} cannot be loaded: {error}"
            ) from error
        return Signature(inputs=self.inputs)

    def warm_up(self, batch: int) -> None:
        self.run(tuple(_zeros(each, batch) for each in self.inputs))

    def run(self, inputs: Tensors) -> Tensors:
        try:
            with self._torch.inference_mode():
                outputs = self._network(*map(self._to_device, inputs))
                return tuple(
                    self._to_host(name, each) for name, each in _named(outputs)
                )
        except self._torch.OutOfMemoryError as error:
            self._torch.cuda.empty_cache()
            raise EngineFailed(
                f"{inputs[0].rows} rows do not fit into memory; make batches smaller: {error}"
            ) from error
        except RuntimeError as error:
            if "CUDA error" in str(
                error
            ):  # Sticky: every later call of this process fails as well.
                raise EngineLost(
                    f"the GPU does not come back in this process: {error}"
                ) from error
            raise

    def facts(self) -> DeviceFacts:
        if not self._is_cuda:
            return DeviceFacts(
                device="cpu", memory_mib=psutil.Process().memory_info().rss / MIB
            )
        gpu = self._torch.cuda.get_device_properties(0)
        return DeviceFacts(
            device=f"cuda:0 {gpu.name}",
            sm_count=gpu.multi_processor_count,
            # What is reserved and not what is used: others cannot have the difference.
            memory_mib=self._torch.cuda.memory_reserved(0) / MIB,
        )

    def offload(self) -> None:
        """Copy the state to pinned host memory and give the device's back; the context stays."""
        for tensor in chain(self._network.parameters(), self._network.buffers()):
            host = self._torch.empty(
                tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=self._is_cuda
            )
            tensor.data = host.copy_(tensor.data)
        if self._is_cuda:
            self._torch.cuda.empty_cache()

    def resume(self) -> None:
        for tensor in chain(self._network.parameters(), self._network.buffers()):
            tensor.data = tensor.data.to(self._place)

    @property
    def _place(self) -> str:
        return "cuda:0" if self._is_cuda else "cpu"

    def _take_device(self) -> None:
        has_gpu = self._torch.cuda.is_available()
        if self.device == "cuda" and not has_gpu:
            raise LaunchFailed(
                "PyTorch sees no GPU; check that it was built for CUDA and that a GPU is visible"
            )
        self._is_cuda = has_gpu and self.device != "cpu"
        if self._is_cuda and self.memory_mib is not None:
            total = self._torch.cuda.get_device_properties(0).total_memory
            self._torch.cuda.set_per_process_memory_fraction(
                min(1.0, self.memory_mib * MIB / total), 0
            )

    def _made(self) -> Any:
        """The network on the CPU."""
        source = self.source
        if source.factory_module is not None:
            network = _factory(source.factory_module, source.network)()
            if source.weights is not None:
                path = file_in(source.directory, source.weights)
                network.load_state_dict(
                    # weights_only: a pickle could run any code when it is read.
                    self._torch.load(path, map_location="cpu", weights_only=True)
                )
            return network.eval()
        path = file_in(source.directory, source.network)
        if path.suffix == ".pt2":
            return self._torch.export.load(
                path
            ).module()  # Exported as it computes; it knows no eval().
        return self._torch.jit.load(str(path), map_location="cpu").eval()

    def _dtype(self) -> Any:
        """The network computes in the datatype of its first floating input; as it was made where there is none."""
        floating = (
            each.datatype for each in self.inputs if each.datatype.startswith("FP")
        )
        name = next(floating, None)
        return None if name is None else getattr(self._torch, DTYPES[name])

    def _to_device(self, tensor: Tensor) -> Any:
        dtype = getattr(self._torch, DTYPES[tensor.datatype])
        flat = self._torch.frombuffer(bytearray(tensor.data), dtype=dtype)
        return flat.reshape(tensor.shape).to(self._place)

    def _to_host(self, name: str, output: Any) -> Tensor:
        torch = self._torch
        if not isinstance(output, torch.Tensor):
            raise EngineFailed(
                f"output {name} is a {type(output).__name__}, not a tensor"
            )
        if output.dtype == torch.bfloat16:
            output = output.float()
        datatype = next(
            (
                each
                for each, known in DTYPES.items()
                if output.dtype == getattr(torch, known)
            ),
            None,
        )
        if datatype is None:
            raise EngineFailed(
                f"output {name} is of {output.dtype}, which the protocol does not have"
            )
        host = output.detach().to("cpu").contiguous()
        data = ctypes.string_at(host.data_ptr(), host.nbytes) if host.nbytes else b""
        return Tensor(name=name, datatype=datatype, shape=tuple(host.shape), data=data)


def _factory(module: str, name: str) -> Any:
    """The function of that name, which must be the module's own and public."""
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise LaunchFailed(f"module {module} cannot be imported: {error}") from error
    if name.startswith("_") or not callable(found):
        raise LaunchFailed(
            f"module {module} has no public function {name!r} that makes a network"
        )
    return found


def _named(outputs: Any) -> Sequence[tuple[str, Any]]:
    """Outputs with names: those of a mapping, else output0, output1, ..."""
    if hasattr(outputs, "items"):
        return [(str(name), each) for name, each in outputs.items() if each is not None]
    several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [(f"output{index}", each) for index, each in enumerate(several)]


def _zeros(kind: TensorType, rows: int) -> Tensor:
    shape = (rows, *kind.row_shape)
    return Tensor(
        name=kind.name,
        datatype=kind.datatype,
        shape=shape,
        data=bytes(byte_count(kind.datatype, shape)),
    )
