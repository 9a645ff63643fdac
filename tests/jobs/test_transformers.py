"""Sweeps of Transformers, analysed as such and by a problem of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.hessians import HessianReader

from landscape.cli import main as cli

TRAIN = {"p": 5, "embed_dim": 4, "heads": 2, "hidden": 6, "steps": 10, "checkpoint_every": 10, "device": "cpu"}
MINE = f"""
import dataclasses
from landscape import ModuleProblem
from landscape.config import preset
from landscape.models import of_config
from landscape.models.tasks import make_data


def problem():
    config = dataclasses.replace(preset("transformer"), **{TRAIN!r})
    known = of_config(config, dataclasses.asdict(make_data(config)), "cpu")
    return ModuleProblem(known.model, known.tokens, known.labels, blocks={{"query": ["Q.*"], "key": ["K.*"]}})
"""


@pytest.mark.long
@pytest.mark.usefixtures("without_workers")
def test_a_sweep_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases with and without LayerNorm; torch's products of the user's module agree with the built-in analysis."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    common = {"steps": "0,10", "k": 3}
    definition = {
        "name": "attention",
        "preset": "transformer",
        "train": TRAIN,
        "cases": {"plain": {}, "normed": {"norm": "pre", "layers": 2}},
        "hessian": [
            {**common, "blocks": ["Q", "K", "Q,K", "U"]},
            {
                **common,
                "name": "own",
                "cases": ["plain"],
                "problem": "mine.py:problem",
                "blocks": ["query", "query,key"],
            },
        ],
    }
    Path("sweep.json").write_text(json.dumps(definition))
    assert cli.run(["sweep", "--config", "sweep.json", "--out", ".", "--jobs", "1", "--quiet"]) == 0
    plain, own = (HessianReader(f"attention/plain-s0.hessian{name}.h5") for name in ("", "-own"))
    assert own.pairs == ["query,key"]
    for step in (0, 10):
        ours, theirs = plain.row(step), own.row(step)
        for ours_i, theirs_i in ((0, 0), (2, 1)):
            norm = ours["operator_norm"][ours_i]
            scaled = [row["eigenvalues"][i] / norm for row, i in ((ours, ours_i), (theirs, theirs_i))]
            np.testing.assert_allclose(scaled[0], scaled[1], rtol=0, atol=1e-10)
    normed = HessianReader("attention/normed-s0.hessian.h5")
    assert np.isfinite(normed.row(10)["eigenvalues"]).all()
