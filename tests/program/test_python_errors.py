"""What a function's caller is told of a mistake: the argument by its name in Python, not as a flag."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import landscape
from landscape.errors import ArgumentError, LandscapeError

CONFIG = landscape.TrainConfig(p=7, embed_dim=2, hidden=3, steps=2, batch_size="full")


@pytest.mark.parametrize(
    ("call", "name"),
    {
        "train": (lambda run, folder: landscape.train({"p": 11}, folder / "new.h5"), "TrainConfig"),
        "analyse": (lambda run, folder: landscape.hessian(run, {"k": 3}), "HessianConfig"),
        "analyse with nothing in it": (lambda run, folder: landscape.hessian(run, {}), "HessianConfig"),
        "sweep": (lambda run, folder: landscape.sweep({"seeds": [0]}, folder / "new"), "SweepConfig"),
        "ensemble": (lambda run, folder: landscape.ensemble({"seed": 0}, folder / "new.h5"), "TrainConfig"),
        "sweep_runs": (lambda run, folder: landscape.sweep_runs({"seeds": [0]}), "SweepConfig"),
    }.values(),
)
def test_a_dict_is_no_config(call: Callable[[Path, Path], Any], name: str, tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as refused:
        call(tiny_run, tmp_path)
    assert (str(refused.value), refused.value.hint) == (
        f"the config is a dict, not a {name}",
        f"give landscape.{name}(...)",
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", [None, ["quick"]])
def test_what_is_no_name_of_a_preset(name: Any) -> None:
    with pytest.raises(LandscapeError) as refused:
        landscape.preset(name)
    assert str(refused.value) == f"unknown preset {name!r}"
    assert refused.value.hint


def test_other_arguments_that_are_none() -> None:
    with pytest.raises(ArgumentError, match="vary is 'lr=0.1,0.2'") as refused:
        landscape.ensemble(landscape.TrainConfig(), "run.h5", vary="lr=0.1,0.2")
    assert refused.value.hint == "give a list: ['lr=0.1,0.2']"


@pytest.mark.parametrize(
    ("call", "words", "hint"),
    {
        "no path": (lambda run, folder: landscape.train(CONFIG, ""), "the path of a file is empty", "name a file"),
        "no folder": (
            lambda run, folder: landscape.write_report(run, ""),
            "the path of a file is empty",
            "name a file",
        ),
        "a zero byte": (
            lambda run, folder: landscape.open("a\0b.h5").to_xarray(),
            "a\\x00b.h5' holds a zero byte",
            "name a file",
        ),
        "a folder": (lambda run, folder: landscape.train(CONFIG, folder), "is a folder", "name the .h5 file"),
        "a folder to record in": (
            lambda run, folder: landscape.Recorder(folder, torch.nn.Linear(2, 2)),
            "is a folder",
            "name the .h5 file",
        ),
        "no files": (
            lambda run, folder: landscape.write_report([], folder / "page"),
            "no files to report on",
            "name one",
        ),
        "a list of runs": (
            lambda run, folder: landscape.train_ensemble([CONFIG]),
            "runs are a list",
            "a config for each path",
        ),
        "no runs": (lambda run, folder: landscape.train_ensemble({}), "no runs to train", "a config for each path"),
        "runs of two shapes": (
            lambda run, folder: landscape.train_ensemble(
                {folder / "a.h5": CONFIG, folder / "b.h5": dataclasses.replace(CONFIG, p=11)}
            ),
            "p is 7 in one run and 11 in another",
            "train them one after another",
        ),
        "jobs": (lambda run, folder: landscape.hessian(run, jobs=-1), "jobs is -1", "an integer >= 1"),
        "jobs as a word": (lambda run, folder: landscape.hessian(run, jobs="2"), "jobs is '2'", "an integer >= 1"),
        "jobs of a sweep": (
            lambda run, folder: landscape.sweep(landscape.SweepConfig(), folder / "new", jobs=1.5),
            "jobs is 1.5",
            "an integer >= 1",
        ),
    }.values(),
)
def test_what_a_function_cannot_do(
    call: Callable[[Path, Path], Any], words: str, hint: str, tiny_run: Path, tmp_path: Path
) -> None:
    """Refused in words before anything is written."""
    with pytest.raises(LandscapeError) as refused:
        call(tiny_run, tmp_path)
    assert words in str(refused.value)
    assert hint in refused.value.hint
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("lower --lr, or --weight-decay", "lower lr, or weight_decay"),
        ("use --overwrite, or leave out --init-scale-W", "use overwrite, or leave out init_scale_W"),
        ("measure first: landscape hessian run.h5", "measure first: landscape hessian run.h5"),
        ("torchrun --nproc-per-node gpu", "torchrun --nproc-per-node gpu"),
        ("a well-known name -- or none", "a well-known name -- or none"),
    ],
)
def test_a_traceback_names_arguments(hint: str, shown: str) -> None:
    error = LandscapeError("wrong", hint)
    assert error.hint == hint
    assert traceback.format_exception_only(error)[-1] == f"hint: {shown}\n"


def test_a_run_in_the_way(tiny_run: Path) -> None:
    with pytest.raises(LandscapeError) as refused:
        landscape.train(landscape.TrainConfig(), tiny_run)
    last = traceback.format_exception_only(refused.value)[-1]
    assert last == "hint: use resume to resume it, overwrite to replace it, or another out\n"
