"""What CONTRIBUTING.md says of adding things: one file each, tried in a copy of the package, from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.commands import forked

ROOT = Path(__file__).parents[2]
QUANTITY = '''"""The Frobenius norm of a dense block."""

from __future__ import annotations

from landscape.measure.quantities.quantity import Column, Quantity
from landscape.files.schema import Field


def compute(at, block):
    return {"frobenius_norm": float(at.matrix(block).matrix.norm())}


FIELDS = (Field("frobenius_norm", ("block",), "f8", "Frobenius norm of the block"),)
FROBENIUS = Quantity(FIELDS, compute, columns=(Column("|H|_F", lambda row: f"{row['frobenius_norm']:.6g}"),), place=15)
'''
FIGURE = """

def traces(frames):
    panel = panels.Panel("trace", "trace", panels.long(frames["by_step_block"], "block", "trace"))
    drawn = panels.over_steps(frames, [panel], "block")
    return drawn and Drawn("Traces", *drawn)


FIGURES += (traces,)
"""
CAPTION = "{% macro traces() %}The trace of each block.{% endmacro %}"

CHOICES = {
    "tasks": '''

@task()
def cubes(a: Ints, b: Ints, p: int) -> Ints:
    """a^3+b^3"""
    return a**3 + b**3
''',
    "samplers": '''

@sampler()
def smallest(samples: Samples, count: int, rng: np.random.Generator) -> Ints:
    """the pairs with the smallest sums"""
    return samples.operands.sum(axis=1).argsort(kind="stable")[:count]
''',
    "activations": '''

@activation()
def swish(x: Tensor) -> Tensor:
    """x sigma(x)"""
    return x * x.sigmoid()
''',
    "optimizers": '''

@optimizer
class Lion(Optimizer):
    """the sign of a moment (arXiv 2302.06675), decoupled weight decay"""

    decoupled = True

    def step(self, theta: Tensor, gradient: Tensor, m: Tensor, v: Tensor, rates: Tensor, number: int) -> None:
        theta.addcmul_(m.lerp(gradient, 0.1).sign_(), rates, value=-1)
        m.lerp_(gradient, 0.01)
''',
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package that has two files and four entries more."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "landscape", folder / "landscape")
    (folder / "landscape/measure/quantities/frobenius.py").write_text(QUANTITY)
    figures, captions = (
        folder / "landscape/report" / name for name in ("figures/__init__.py", "templates/captions.j2")
    )
    figures.write_text(figures.read_text().replace("import curvature,", "import curvature, panels,") + FIGURE)
    captions.write_text(captions.read_text() + CAPTION)
    for name, entry in CHOICES.items():
        path = folder / f"landscape/choices/{name}.py"
        path.write_text(path.read_text() + entry)
    options = ["--p", "5", "--tokens", "2", "--embed-dim", "2", "--hidden", "4", "--batch-size", "8"]
    landscape(folder, "train", "--steps", "20", "--train-fraction", "0.6", *options, "--out", "run.h5", "--quiet")
    return folder


def landscape(folder: Path, *argv: str) -> str:
    """The output of a command of the package in a folder."""
    done = forked(*argv, copy=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@pytest.mark.slow
def test_a_quantity_is_a_file_and_a_figure_a_function(copy: Path) -> None:
    """The file, its reader, its table and the report have them; a file that was made before still opens."""
    said = landscape(copy, "hessian", "run.h5", "--steps", "0,20", "--blocks", "E", "E,W", "--quiet", "--tables")
    titles, first = (line.split("  ") for line in said.splitlines()[:2])
    assert "|H|_F" in map(str.strip, titles)
    with h5py.File(copy / "run.hessian.h5") as file:
        norms, spectra = file["frobenius_norm"], [file["spectrum"][block][0] for block in ("E", "E,W")]
        assert (norms.attrs["long_name"], norms.dims[1][0].name) == ("Frobenius norm of the block", "/block")
        np.testing.assert_allclose(norms[0], [np.linalg.norm(values) for values in spectra], rtol=1e-12)
        assert f"{norms[0, 0]:.6g}" in map(str.strip, first)
    landscape(copy, "report", "run.h5", "--out", "report", "--quiet")
    page = (copy / "report/report.html").read_text()
    assert '<h2 id="traces">Traces</h2>' in page
    assert "The trace of each block." in page
    assert (copy / "report/figures/traces.svg").stat().st_size > 1000


@pytest.mark.slow
def test_a_task_a_sampler_an_activation_and_an_optimiser_are_one_entry_each(copy: Path) -> None:
    """Help, training, exact resumption and analysis know them."""
    shown = " ".join(landscape(copy, "train", "--help").replace("│", " ").split())
    for text in ("text, cubes]", "cubes: a^3+b^3", "smallest", "swish: x sigma(x)", "lion"):
        assert text in shown
    options = ["--p", "5", "--tokens", "2", "--embed-dim", "2", "--hidden", "4", "--batch-size", "4", "--quiet"]
    options += ["--task", "cubes", "--sampler", "smallest", "--activation", "swish", "--optimizer", "lion"]
    options += ["--lr", "0.125", "--weight-decay", "0", "--dtype", "float64"]
    landscape(copy, "train", *options, "--steps", "20", "--out", "whole.h5")
    landscape(copy, "train", *options, "--steps", "9", "--out", "parts.h5")
    landscape(copy, "train", "--resume", "--steps", "20", "--out", "parts.h5", "--quiet")
    with h5py.File(copy / "whole.h5") as whole, h5py.File(copy / "parts.h5") as parts:
        a, b = whole["data/tokens"][()].T
        np.testing.assert_array_equal(whole["data/labels"], (a**3 + b**3) % 5)
        assert (a + b)[whole["data/split"][()] == 0].max() <= (a + b)[whole["data/split"][()] == 1].min()
        assert "moments" not in whole
        for name in ("E", "W", "b1", "V", "b2"):
            values = whole["checkpoints"][name]
            np.testing.assert_array_equal(parts["checkpoints"][name][-1], values[-1])
            moved = abs(values[1] - values[0])
            assert (np.isclose(moved, 0.125) | (moved == 0)).all()
        for name in ("E", "W", "m_E", "m_W", "m_V", "v_E", "rng", "order", "position", "count"):
            resumed, expected = (f["resume"][name][f["resume/step"][()].argmax()] for f in (parts, whole))
            np.testing.assert_array_equal(resumed, expected)
    # The second opinion is torch's automatic differentiation of the plain network.
    said = landscape(copy, "hessian", "whole.h5", "--steps", "20", "--blocks", "all", "--verify", "--quiet")
    assert "dense" in said
