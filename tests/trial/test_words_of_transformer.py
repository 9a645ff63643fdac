"""Words in a Transformer: their ranges from the raw files by other means, and what the page says of them."""

from __future__ import annotations

import json
import pydoc_data.topics
from html import unescape
from pathlib import Path

import numpy as np
import page
import pytest
import torch
import words
from helpers.made_tables import assert_told, write_tables
from helpers.made_texts import OF_READER, TINY, write_reader, write_text
from helpers.tiny_trial import STUDIES
from runs import finished

from landscape.files.runs import RunReader
from landscape.jobs.plan import SweepConfig
from landscape.jobs.run import run_sweep
from landscape.models import of_run


def make_reader(folder: Path) -> None:
    """A tiny run of a Transformer whose words are compared by rank."""
    text = folder / "topics.txt"
    text.write_text("\n".join(pydoc_data.topics.topics.values()), encoding="utf-8")
    study = json.loads((STUDIES / "text-transformer/beyond/exploratory/words.json").read_text())
    train = {**study["train"], **TINY, "heads": 2, "text": str(text)}
    grid = {name: values[1:2] for name, values in study["grid"].items() if name != "batch_size"}
    tiny = {**study, "train": train, "grid": grid, "seeds": [300]}
    run_sweep(SweepConfig(**tiny), folder / "text-transformer", jobs=1, overwrite=False, quiet=True)


@pytest.mark.slow
@pytest.mark.usefixtures("without_workers")
def test_ranges_of_a_transformer(tmp_path: Path) -> None:
    """Gradients by differences of the loss, as analyses compute it; that of AdamW's decay is no loss."""
    make_reader(tmp_path)
    (run,) = finished("words", tmp_path / "text-transformer")
    table = words.ranges(run)
    with RunReader(run.planned.path) as reader:
        problem = of_run(reader)
        arrays = reader.checkpoint(reader.steps[-1])
    params = {name: torch.from_numpy(values).double() for name, values in arrays.items()}
    loss = problem.objective(0.0)
    E, slopes = params["E"], torch.zeros(59, params["E"].shape[1], dtype=torch.float64)
    for i, j in np.ndindex(*slopes.shape):
        ends = []
        for h in (-1e-5, 1e-5):
            moved = E.clone()
            moved[i, j] += h
            ends.append(loss.value({**params, "E": moved}))
        slopes[i, j] = (ends[1] - ends[0]) / 2e-5
    cosine = -torch.nn.functional.cosine_similarity(E[:59], slopes)
    for row in table.itertuples():
        assert row.opposed == pytest.approx(float(np.median(cosine[row.first - 1 : row.last])), abs=1e-5)
    assert table["balance"].isna().all()
    assert table["learned"].notna().any()


@pytest.mark.parametrize(("x", "judgement"), [(0.7, "supported"), (-0.7, "not supported"), (0.0, "undecided")])
def test_the_page_follows_a_transformer(x: float, judgement: str, tmp_path: Path) -> None:
    write_tables(tmp_path / "mid", {}, tokens=4)
    write_text(tmp_path / "text", {0.7: -0.7, -0.7: 0.0, 0.0: 0.7}[x])
    write_reader(tmp_path / "text-transformer", x)
    texts = page.written(tmp_path)
    html, report = unescape(texts[tmp_path / "index.html"]), texts[tmp_path / "report.md"]
    assert_told(html, report, OF_READER, judgement)
    for text in (html, report):
        # Medians over three seeds of the depths over training alone, at two steps.
        assert text.count(">0.33</a>") == text.count(">0.55</a>") == 2
        # Seeds, three test losses and the lowest of each rate lead to its first row.
        assert [text.count(f'text-transformer/losses.csv#L{row}"') for row in (2, 6, 10, 14)] == [5] * 4
        assert "Proposition 4.1" in text
        # Words by rank: norms at the ends of both decays, cosines alone for the setting with decay that learns.
        assert text.count(">3.75</a>") == 2
        assert text.count(">0.812</a>") == text.count(">0.75</a>") == 2
        assert ">0.75 to 0.75</a>" in text
        assert "no ratio of the two is 1 at rest" in text
    assert 'href="text-transformer/zipf.csv"' not in html
    assert 'href="text-transformer/losses.csv"' in html
