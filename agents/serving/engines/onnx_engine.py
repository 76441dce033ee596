"""ONNX Runtime: an .onnx file of the allowed directory, on the first visible GPU or on the CPU.

ONNX Runtime is imported when the engine is loaded; it comes with extra `onnx` (its CUDA build is a package of its own).
It cannot move a session's memory: offloading ends the session, and resuming loads the file again.
"""

import argparse
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from agents.base.device import LaunchFailed
from agents.serving.engines.engine import DeviceFacts, Signature, file_in
from agents.serving.engines.errors import EngineFailed, EngineLost
from agents.serving.engines.sm_count import driver_sm_count
from agents.serving.engines.tensors import Tensor, Tensors, TensorType, byte_count

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
MIB = 1024 * 1024

DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
}
"""The runtime's words by the protocol's."""

NUMPY_NAMES = {"FP16": "float16", "FP32": "float32", "FP64": "float64"}
"""The others' numpy names are the protocol's in lower case."""

log = logging.getLogger(__name__)


def make_onnx_engine(options: argparse.Namespace) -> "OnnxEngine":
    """The engine of some arguments. Raises LaunchFailed."""
    return OnnxEngine(
        path=file_in(options.network_dir, options.network),
        device=options.device,
        batch_limit=options.batch_limit,
        memory_mib=options.memory_mib,
        threads=options.threads,
    )


@dataclass(slots=True, kw_only=True)
class OnnxEngine:
    """One network in ONNX Runtime."""

    path: Path
    device: str = "auto"
    batch_limit: int = 1
    memory_mib: float | None = None
    threads: int = 1
    platform: str = "onnxruntime_onnx"
    # Both are extras here; neither leaves this file.
    _runtime: Any = field(init=False)
    _numpy: Any = field(init=False)
    _session: Any = field(init=False, default=None)
    _sm_count: int | None = field(init=False, default=None)
    _signature: Signature = field(init=False, default_factory=Signature)

    def load(self) -> Signature:
        try:
            import numpy
            import onnxruntime
        except ImportError as error:
            raise LaunchFailed(
                f"ONNX Runtime cannot be imported ({error}); install the extra onnx"
            ) from error
        self._runtime, self._numpy = onnxruntime, numpy
        self.resume()
        if self._is_cuda:
            self._sm_count = driver_sm_count()
        inputs = tuple(map(self._kind, self._session.get_inputs()))
        self._signature = Signature(
            inputs=inputs, outputs=tuple(map(self._kind, self._session.get_outputs()))
        )
        return self._signature

    def warm_up(self, batch: int) -> None:
        self.run(tuple(_zeros(each, batch) for each in self._signature.inputs))

    def run(self, inputs: Tensors) -> Tensors:
        if self._session is None:
            raise EngineFailed("the network is offloaded; resume it first")
        given = {each.name: self._array(each) for each in inputs}
        try:
            outputs = self._session.run(None, given)
        except (
            Exception
        ) as error:  # The runtime's own exceptions share no base but this.
            if "CUDA failure" in str(error):
                raise EngineLost(
                    f"the GPU does not come back in this process: {error}"
                ) from error
            raise EngineFailed(f"the network failed: {error}") from error
        return tuple(
            Tensor(
                name=kind.name,
                datatype=kind.datatype,
                shape=each.shape,
                data=each.tobytes(),
            )
            for kind, each in zip(self._signature.outputs, outputs, strict=True)
        )

    def facts(self) -> DeviceFacts:
        if self._is_cuda:  # The runtime does not say what its arena holds.
            return DeviceFacts(device="cuda:0", sm_count=self._sm_count)
        return DeviceFacts(
            device="cpu", memory_mib=psutil.Process().memory_info().rss / MIB
        )

    def offload(self) -> None:
        self._session = None

    def resume(self) -> None:
        runtime = self._runtime
        options = runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        try:
            self._session = runtime.InferenceSession(
                str(self.path), options, providers=self._providers()
            )
        except (
            Exception
        ) as error:  # The runtime's own exceptions share no base but this.
            raise LaunchFailed(f"{self.path.name} cannot be loaded: {error}") from error
        took = self._session.get_providers()[0]
        if (
            self.device == "cuda" and took != CUDA
        ):  # The runtime falls back without a word.
            raise LaunchFailed(
                f"{self.path.name} runs on {took} although a GPU was requested; check that CUDA's library is installed"
            )
        log.info("network %s runs on %s", self.path.name, took)

    @property
    def _is_cuda(self) -> bool:
        return self._session is not None and self._session.get_providers()[0] == CUDA

    def _providers(self) -> list[object]:
        if self.device == "cpu" or CUDA not in self._runtime.get_available_providers():
            return [CPU]
        settings: dict[str, object] = {
            "device_id": 0,
            "arena_extend_strategy": "kSameAsRequested",
        }
        if self.memory_mib is not None:
            settings["gpu_mem_limit"] = int(self.memory_mib * MIB)
        return [(CUDA, settings), CPU]

    def _kind(self, argument: Any) -> TensorType:
        """The kind of one of the session's inputs or outputs; its first dimension must be the batch."""
        if argument.type not in DATATYPES:
            raise LaunchFailed(
                f"{self.path.name}: {argument.name} is {argument.type}, which is not supported"
            )
        if not argument.shape:
            raise LaunchFailed(
                f"{self.path.name}: {argument.name} has no dimension that could count rows"
            )
        rows, *row_shape = [
            each if isinstance(each, int) else -1 for each in argument.shape
        ]
        if rows != -1 and not rows == self.batch_limit == 1:
            raise LaunchFailed(
                f"{self.path.name}: {argument.name} has {rows} rows, always; export it with a dynamic first dimension"
                + (", or give --batch-limit 1" if rows == 1 else "")
            )
        return TensorType(
            name=argument.name,
            datatype=DATATYPES[argument.type],
            row_shape=tuple(row_shape),
        )

    def _array(self, tensor: Tensor) -> Any:
        name = NUMPY_NAMES.get(tensor.datatype, tensor.datatype.lower())
        return self._numpy.frombuffer(tensor.data, dtype=name).reshape(tensor.shape)


def _zeros(kind: TensorType, rows: int) -> Tensor:
    """Zeros of that kind; 1 where any length will do."""
    shape = (rows, *(1 if length == -1 else length for length in kind.row_shape))
    return Tensor(
        name=kind.name,
        datatype=kind.datatype,
        shape=shape,
        data=bytes(byte_count(kind.datatype, shape)),
    )
