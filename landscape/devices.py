"""The device to use, and whether dense work fits in its memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from landscape.errors import DeviceError, DoesNotFitError
from landscape.memory import free_bytes

LAPACK_LIMIT = 32_000
"""Largest order before LAPACK's 32-bit indices overflow."""
LIBRARIES = 300_000_000
"""Bytes that loading the libraries takes in the first analysis."""


def pick_device(name: str) -> torch.device:
    """`auto`: the GPU if there is one. Raises DeviceError for `cuda` without one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("--device cuda, but no CUDA device is available", "use --device cpu or auto")
    use_cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if use_cuda else "cpu")


def require_dense(block: str, n: int, device: torch.device) -> None:
    """Raise DoesNotFitError if the eigenvalues of a dense n x n block cannot be computed."""
    needed, free = dense_bytes(n), free_memory(device)
    if needed > free:
        raise DoesNotFitError(
            f"block {block} as a dense matrix ({n:,} parameters) needs {needed / 1e9:.1f} GB; "
            f"{free / 1e9:.1f} GB are free",
            "use --method lanczos, or leave the block out of --blocks",
        )
    if n > LAPACK_LIMIT:
        raise DoesNotFitError(
            f"block {block} has {n:,} parameters; LAPACK's 32-bit indices end at {LAPACK_LIMIT:,}",
            "use --method lanczos, or leave the block out of --blocks",
        )


def require_factor(block: str, order: int, needed: int, device: torch.device) -> None:
    """Raise DoesNotFitError if a Cholesky factor of this order, which needs so many bytes, does not fit."""
    needed, free = needed + LIBRARIES if needed else 0, free_memory(device)
    if needed > free:
        raise DoesNotFitError(
            f"the index of block {block} takes a factor of order {order:,} and {needed / 1e9:.1f} GB; "
            f"{free / 1e9:.1f} GB are free",
            f"set --factor-limit {int(0.9 * order * (max(free - LIBRARIES, 0) / needed) ** 0.5)}: the bracket is wider",
        )


def dense_bytes(n: int) -> int:
    """Peak bytes of the eigenvalues and inertia of a dense n x n block."""
    # The matrix, the copy that LAPACK overwrites, the reflectors, and the parts it is assembled from.
    return 6 * 8 * n * n + LIBRARIES


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device; on the CPU as `free_bytes`."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_bytes()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: results are then the same, to the last bit, however many processes share the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, so that no step or product waits for fresh pages from the kernel.

    Freeing a block of this size raises glibc's mmap threshold.
    """
    torch.empty(31 << 20, dtype=torch.uint8)
