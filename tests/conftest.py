"""Runs that many tests read: small, real and made once a session."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# Sums depend on the number of threads; processes that tests start are compared with this one bit for bit.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from helpers.studies import make_studies

from landscape.analysis.hessian import analyse
from landscape.config import HessianConfig, TrainConfig
from landscape.storage.hessians import HessianReader
from landscape.training.loop import train

torch.set_num_threads(1)
# What a shell runs in the background ignores Ctrl-C, and what that starts would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

TINY = TrainConfig(
    p=7,
    tokens=2,
    embed_dim=4,
    hidden=8,
    batch_size=16,
    train_fraction=0.6,
    steps=60,
    checkpoint_every=20,
    metrics_every=10,
    device="cpu",
)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 7 * 4 + 8 * 8 + 8 + 7 * 8 + 7 parameters. Read only."""
    path = tmp_path_factory.mktemp("runs") / "tiny.h5"
    train(TINY, path, quiet=True)
    return path


@pytest.fixture(scope="session")
def tiny_hessian(tiny_run: Path) -> HessianReader:
    """The analysis of `tiny_run`, all blocks, beside it. Read only."""
    blocks = ("E", "W", "V", "E,W", "W,V", "E,V", "all")
    return analyse(tiny_run, HessianConfig(blocks=blocks, device="cpu"), quiet=True)


@pytest.fixture(scope="session")
def tiny_studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all studies as `make studies` leaves them, of networks too small to mean anything. Read only."""
    folder = tmp_path_factory.mktemp("studies")
    make_studies(folder)
    return folder
