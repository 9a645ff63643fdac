"""Which device to use and whether dense work fits in its memory."""

from __future__ import annotations

import torch

from landscape.errors import DeviceError, DoesNotFitError
from landscape.memory import free_bytes

LAPACK_LIMIT = 32_000
"""Above this order LAPACK's 32-bit indices overflow."""
LIBRARIES = 300_000_000
"""Bytes that the first analysis of any size takes."""


def pick_device(name: str) -> torch.device:
    """`auto`: the GPU if there is one. Raises DeviceError for `cuda` without one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("--device cuda, but no CUDA device is available", "use --device cpu or auto")
    use_cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if use_cuda else "cpu")


def require_dense(block: str, n: int, device: torch.device) -> None:
    """Raise DoesNotFitError before the eigenvalues of a dense n x n block are asked for in vain."""
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


def dense_bytes(n: int) -> int:
    """Bytes that are taken at most while the eigenvalues and the inertia of a dense n x n block are found."""
    # The matrix, the copy that LAPACK overwrites, the reflectors, and the parts it is assembled from.
    return 6 * 8 * n * n + LIBRARIES


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device; on the CPU within the limits of process and control groups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_bytes()


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, as it does once a block of this size was given back.

    No step or product waits for fresh pages from the kernel then.
    """
    torch.empty(31 << 20, dtype=torch.uint8)
