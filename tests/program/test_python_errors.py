"""What a function's caller is told of a mistake: the argument by its name in Python, not as a flag."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import landscape
from landscape.errors import ArgumentError, LandscapeError


@pytest.mark.parametrize(
    ("call", "name"),
    {
        "train": (lambda run, folder: landscape.train({"p": 11}, folder / "new.h5"), "TrainConfig"),
        "analyse": (lambda run, folder: landscape.analyse(run, {"k": 3}), "HessianConfig"),
        "analyse with nothing in it": (lambda run, folder: landscape.analyse(run, {}), "HessianConfig"),
        "run_sweep": (lambda run, folder: landscape.run_sweep({"seeds": [0]}, folder / "new"), "SweepConfig"),
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


def test_other_arguments_that_are_none() -> None:
    with pytest.raises(LandscapeError) as refused:
        landscape.preset(None)  # type: ignore[arg-type]
    assert str(refused.value) == "unknown preset None"
    with pytest.raises(ArgumentError, match="vary is 'lr=0.1,0.2'") as refused:
        landscape.ensemble(landscape.TrainConfig(), "run.h5", vary="lr=0.1,0.2")
    assert refused.value.hint == "give a list: ['lr=0.1,0.2']"


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("lower --lr, or --weight-decay", "lower lr, or weight_decay"),
        ("use --overwrite, or leave out --init-scale-W", "use overwrite, or leave out init_scale_W"),
        ("measure first: landscape hessian --ckpt run.h5", "measure first: landscape hessian --ckpt run.h5"),
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
