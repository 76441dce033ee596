"""A process that asks CUDA itself, without PyTorch: `python -m bench.real_gpu.client`, lines of JSON.

    it says first          {"pid": 1, "sm_count": 52}
    {"take": 4096}         {"taken_mib": 960}     memory granted up to that limit in MiB, given back at once
    {"work": 5.0}          {"rounds": 120}        GPU work for that number of seconds
    instead of an answer   {"error": 810, "doing": "cuCtxSynchronize"}    CUDA's number; it sticks

It ends with its standard input. Under MPS the SMs seen are the capped number.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

BLOCK_MIB = 64
MULTIPROCESSORS = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT"""
OUT_OF_MEMORY = 2
NO_LIBRARY = -1
"""Instead of a number of CUDA's: its library cannot be loaded."""
FILLS = 64
"""Fills of a buffer between two waits: some milliseconds of work."""


class CudaFailed(Exception):
    """A call failed: number, function."""


class Cuda(Protocol):
    """What is needed of a GPU."""

    def sm_count(self) -> int:
        """SMs that this process sees."""
        ...

    def take(self, limit_mib: int) -> int:
        """MiB granted, at most `limit_mib`; given back."""
        ...

    def work(self) -> None:
        """Some milliseconds of work on the GPU, done when it returns."""
        ...


class DriverCuda:
    """The first visible GPU through the driver's own interface. Raises CudaFailed."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaFailed(NO_LIBRARY, f"loading libcuda.so.1: {error}") from error
        self._device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._buffer = 0

    def sm_count(self) -> int:
        count = ctypes.c_int()
        self._call(
            "cuDeviceGetAttribute", ctypes.byref(count), MULTIPROCESSORS, self._device
        )
        return count.value

    def take(self, limit_mib: int) -> int:
        blocks: list[int] = []
        try:
            while (len(blocks) + 1) * BLOCK_MIB <= limit_mib:
                blocks.append(self._allocate())
        except CudaFailed as error:
            if error.args[0] != OUT_OF_MEMORY:
                raise
        for block in blocks:
            self._call("cuMemFree_v2", ctypes.c_uint64(block))
        return len(blocks) * BLOCK_MIB

    def work(self) -> None:
        self._buffer = self._buffer or self._allocate()
        for number in range(FILLS):
            size = ctypes.c_size_t(BLOCK_MIB << 20)
            self._call(
                "cuMemsetD8_v2",
                ctypes.c_uint64(self._buffer),
                ctypes.c_ubyte(number),
                size,
            )
        self._call("cuCtxSynchronize")

    def _allocate(self) -> int:
        address = ctypes.c_uint64()
        self._call(
            "cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(BLOCK_MIB << 20)
        )
        return address.value

    def _call(self, function: str, *arguments: object) -> None:
        if code := int(getattr(self._library, function)(*arguments)):
            raise CudaFailed(code, function)


def main(make_cuda: Callable[[], Cuda] = DriverCuda) -> int:
    """Entry point; the exit code."""
    try:
        cuda = make_cuda()
        _say({"pid": os.getpid(), "sm_count": cuda.sm_count()})
        for line in sys.stdin:
            _say(_answer(cuda, json.loads(line)))
    except CudaFailed as error:
        _say({"error": error.args[0], "doing": error.args[1]})
        sys.stdin.read()
        return 1
    return 0


def _answer(cuda: Cuda, order: dict[str, float]) -> dict[str, int]:
    if "take" in order:
        return {"taken_mib": cuda.take(int(order["take"]))}
    end_s, rounds = time.monotonic() + order["work"], 0
    while time.monotonic() < end_s:
        cuda.work()
        rounds += 1
    return {"rounds": rounds}


def _say(message: dict[str, object] | dict[str, int]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
