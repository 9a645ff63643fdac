"""Room for the vectors of a Krylov space: in memory, or where memory is short in a file that the system pages."""

from __future__ import annotations

import os
import shutil
import tempfile

import torch
from torch import Tensor

from landscape.errors import DoesNotFitError
from landscape.memory import free_bytes

SHARE = 0.5
"""Share of the free memory that one Krylov space may take; the rest is for products and for what a step computes."""


def vectors(n: int, columns: int, dtype: torch.dtype, device: torch.device, spaces: int = 1) -> Tensor:
    """Uninitialised vectors (columns, n), one a row.

    A file keeps every digit. It has no name, so that it goes with the process, and steps that read it back wait for
    the disk. spaces: as many of this size are asked for, one after the other.

    Raises:
        DoesNotFitError: if they fit neither in memory nor on the disk of TMPDIR.
    """
    size = n * columns * dtype.itemsize
    if device.type != "cpu" or spaces * size <= SHARE * (free := free_bytes()):
        return torch.empty(columns, n, dtype=dtype, device=device)
    folder = tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            # Reserved now: a write to a full disk through a mapping would end the process.
            os.posix_fallocate(file.fileno(), 0, size)
            return torch.from_file(file.name, shared=True, size=n * columns, dtype=dtype).view(columns, n)
    except OSError as error:
        raise DoesNotFitError(
            f"{spaces * columns} vectors of {n:,} numbers take {spaces * size / 1e9:.1f} GB; {free / 1e9:.1f} GB of "
            f"memory and {shutil.disk_usage(folder).free / 1e9:.1f} GB of {folder} are free",
            "set TMPDIR to a folder of a larger disk; or search one end at a time for fewer eigenvalues",
        ) from error
