"""Which errors are the device's and not the program's, by their text: MLX raises all of them as RuntimeError.

The engine asks this about exceptions: since MLX 0.32.1 a Metal command buffer that fails raises at the next
evaluation that waits for it, once, and what it should have written is garbage. So a broad handler raises such
an error again, which ends the engine. The server asks it about a dead engine's stderr.
"""

from __future__ import annotations

import re
from enum import StrEnum


class DeviceFault(StrEnum):
    """What went wrong on the device; the server's `DeathCause` has the same names."""

    BUFFER_LIMIT = "buffer_limit"
    OUT_OF_MEMORY = "out_of_memory"
    GPU_TIMEOUT = "gpu_timeout"
    GPU_VICTIM = "gpu_victim"
    GPU_ERROR = "gpu_error"


# Messages of Metal's completion handler, of MLX's allocators and of its CUDA checks ("NAME failed: TEXT"),
# with any text around them.
_METAL = "kIOGPUCommandBufferCallbackError"
_CUDA = r"\bcu(?:da)?[A-Z]\w*(?:\([^\n]*?\))? failed: "
_CUBLAS = r"\bcublas\w+(?:\([^\n]*?\))? failed with code: "
_MARKS = (
    (DeviceFault.BUFFER_LIMIT, re.compile(r"malloc\w*\] Resource limit")),
    (
        DeviceFault.OUT_OF_MEMORY,
        re.compile(
            rf"{_METAL}OutOfMemory|malloc\w*\] (?:Attempting|Unable) to allocate"
            rf"|^MemoryError\b|std::bad_alloc|cudaErrorMemoryAllocation|CUDA\b.*out of memory"
            rf"|{_CUDA}out of memory|{_CUBLAS}3\b"
        ),
    ),
    # macOS ends or ignores this process's work for what another one did.
    (DeviceFault.GPU_VICTIM, re.compile(rf"{_METAL}(?:InnocentVictim|SubmissionsIgnored)")),
    (
        DeviceFault.GPU_TIMEOUT,
        re.compile(
            rf"{_METAL}(?:Timeout|Hang|ImpactingInteractivity)|Caused GPU (?:Timeout|Hang) Error"
            r"|cudaErrorLaunchTimeout|the launch timed out and was terminated"
        ),
    ),
    (
        DeviceFault.GPU_ERROR,
        re.compile(
            rf"{_METAL}|\[METAL\] Command buffer|cudaError\w+"
            rf"|{_CUDA}(?:an illegal memory access|unspecified launch failure|uncorrectable ECC|"
            r"device-side assert|misaligned address)"
            # Not initialised, execution failed, internal error; others are of the product that was asked for.
            rf"|{_CUBLAS}(?:1|13|14)\b"
            # What is left of a kernel that was being kept when its process ended (`mlx/environment.py`).
            r"|Failed to load compiled "
        ),
    ),
)
_MALLOC = re.compile(r"\[(?:\w+::)?malloc")


def device_fault(text: str) -> DeviceFault | None:
    """Return what a line of text reports of the device, if anything."""
    return next((fault for fault, mark in _MARKS if mark.search(text)), None)


def is_device_error(error: BaseException) -> bool:
    """Return whether the device, or its memory, failed. Such an error says nothing about the model, the
    adapter or the file that was being tried, and arrays that were being computed are garbage."""
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    return _MALLOC.search(text) is not None or device_fault(text) is not None
