"""Steps per second of `landscape train` beside a plain PyTorch loop, and of an ensemble beside single runs."""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

from benchmarks.harness import PLAIN, Numbers, Part, Row, every_core, main, timed
from landscape import train
from landscape.config import TrainConfig, preset
from landscape.models.tasks import TRAIN, make_data

STEPS = {"quick": 3000, "mid": 1500}
MEMBERS, ROUNDS = 16, 3


def plain_loop(config: TrainConfig, fused: bool) -> None:
    """A good plain PyTorch loop: two parameter groups, shuffled epochs by index, no metrics and no files."""
    x, y = (torch.from_numpy(array).long() for array in make_data(config).subset(TRAIN))
    embedding = nn.Embedding(config.num_tokens, config.embed_dim)
    width = config.tokens * config.embed_dim
    rest = nn.Sequential(nn.Flatten(), nn.Linear(width, config.hidden), nn.ReLU(), nn.Linear(config.hidden, config.p))
    groups = [{"params": embedding.parameters(), "lr": config.lr}, {"params": rest.parameters()}]
    optimizer = torch.optim.Adam(groups, lr=config.lr, weight_decay=config.weight_decay, fused=fused)
    loss, size = nn.CrossEntropyLoss(), int(config.batch_size)
    batches: list[torch.Tensor] = []
    for _ in range(config.steps):
        if not batches:
            batches = [*torch.randperm(len(x)).split(size)][: len(x) // size]
        at = batches.pop()
        optimizer.zero_grad()
        loss(rest(embedding(x[at])), y[at]).backward()
        optimizer.step()


def single(name: str, threads: int, rounds: int) -> Numbers:
    """Alternate the three loops, so that other load affects all of them."""
    torch.set_num_threads(threads)
    config = dataclasses.replace(preset(name), steps=STEPS[name], stop_test_accuracy=None)
    seconds: dict[str, list[float]] = {"plain": [], "plain_fused": [], "landscape": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        for _ in range(rounds):
            seconds["plain"].append(timed(lambda: plain_loop(config, fused=False))[0])
            seconds["plain_fused"].append(timed(lambda: plain_loop(config, fused=True))[0])
            seconds["landscape"].append(timed(lambda: train(config, path, overwrite=True, quiet=True))[0])
    return {
        "preset": name,
        "threads": threads,
        "steps": config.steps,
        "rounds": rounds,
        "steps_per_second": {n: config.steps / statistics.median(t) for n, t in seconds.items()},
    }


def many(members: int) -> Numbers:
    """`landscape train --seeds` as one process, beside as many runs alone, one on each core at a time."""
    command = [sys.executable, "-m", "landscape", "train", "--preset", "quick", "--quiet", "--device", "cpu"]

    def run(flags: str, threads: dict[str, str]) -> None:
        subprocess.run([*command, *flags.split()], env=every_core() | threads, stdout=subprocess.DEVNULL, check=True)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        apiece = [f"--seed {seed} --out {folder}/{seed}.h5" for seed in range(members)]
        works = {
            "ensemble": lambda: run(f"--seeds {members} --out {folder}/all.h5", {}),
            "a_core_each": lambda: list(pool.map(lambda flags: run(flags, {"OMP_NUM_THREADS": "1"}), apiece)),
        }
        seconds = {how: timed(work)[0] for how, work in works.items()}
    return {"preset": "quick", "members": members, "seconds": seconds}


def parts() -> list[Part]:
    one_each = [(name, threads) for name in STEPS for threads in (1, 2)]
    return [
        *(
            Part(f"{n}, {t} threads", functools.partial(single, n, t, ROUNDS), slow=t > 1 or n != "quick")
            for n, t in one_each
        ),
        Part("ensemble", functools.partial(many, MEMBERS), slow=True),
    ]


def rows(results: Mapping[str, Numbers]) -> Iterator[Row]:
    """A row a network and number of threads, and one of many runs."""
    for part, numbers in results.items():
        if part == "ensemble":
            together, apiece = (f"{numbers['seconds'][how]:.0f} s" for how in ("ensemble", "a_core_each"))
            what = (
                f"{numbers['members']} runs of quick: `--seeds {numbers['members']}`, beside one run a core at a time"
            )
            yield Row(what, {"landscape": f"{together}, beside {apiece}"})
            continue
        rates = {tool: f"{rate:.0f} steps/s" for tool, rate in numbers["steps_per_second"].items()}
        loop = f"{rates['plain']}; fused Adam {rates['plain_fused']}"
        yield Row(f"training, {part}, with files and metrics here", {"landscape": rates["landscape"], PLAIN: loop})


if __name__ == "__main__":
    sys.exit(main("training", parts()))
