"""Figures drawn by several processes: the same bytes, the same errors, and no process outlives its report."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from conftest import TINY
from helpers import foreign
from helpers.hessians import analyse
from scipy import stats

from landscape.config import HessianConfig
from landscape.report.figures.coupling import PowerLaw
from landscape.report.page import write_report
from landscape.report.style import new_figure, palette, plain_power, plain_powers, shades, style
from landscape.training.loop import train

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from landscape.report.figures import FAMILIES

parent = os.getpid()
def marked(sources):
    if os.getpid() != parent:
        {in_helper}
    {in_parent}
    return curves(sources)
curves = FAMILIES["training_curves"]
for name in list(FAMILIES):
    del FAMILIES[name]
FAMILIES |= dict.fromkeys("abc", marked)
from landscape.errors import NumericsError
from landscape.report.page import write_report
write_report([sys.argv[1]], sys.argv[2], quiet=True, jobs={jobs})
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drawing") / "run.h5"
    train(dataclasses.replace(TINY, steps=20), path, quiet=True)
    return path


def start(run: Path, out: Path, jobs: int, in_helper: str = "pass", in_parent: str = "pass") -> subprocess.Popen[str]:
    """A process of its own that writes a report; its figures do something first."""
    program = PROGRAM.format(jobs=jobs, in_helper=in_helper, in_parent=in_parent)
    command = [sys.executable, "-W", "error", "-c", program, str(run), str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def alone(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a report that no helper had a hand in."""
    out = tmp_path_factory.mktemp("alone") / "r"
    assert start(run, out, 1).communicate() == ("", "")
    return contents(out)


@pytest.mark.long
def test_helpers_change_nothing(run: Path, alone: dict[str, bytes], tmp_path: Path) -> None:
    """Every file of a report is the same to the byte, whoever drew it; helpers did draw."""
    seen = f"Path({str(tmp_path / 'seen')!r})"
    drawn = start(run, tmp_path / "r", 3, f"{seen}.touch()", f"while not {seen}.exists(): time.sleep(0.01)")
    assert drawn.communicate() == ("", "")
    assert contents(tmp_path / "r") == alone


def test_a_killed_helper_leaves_its_figures_to_the_others(run: Path, alone: dict[str, bytes], tmp_path: Path) -> None:
    """As where memory ran out: the report is whole."""
    drawn = start(run, tmp_path / "r", 3, "os.kill(os.getpid(), signal.SIGKILL)")
    assert drawn.communicate() == ("", "")
    assert drawn.returncode == 0
    assert contents(tmp_path / "r") == alone


def test_an_error_of_a_helper_is_raised(run: Path, tmp_path: Path) -> None:
    """With the traceback of the figure, and no report."""
    drawn = start(run, tmp_path / "r", 2, "raise NumericsError('no', 'mend')", "raise NumericsError('no', 'mend')")
    _, said = drawn.communicate()
    assert said.count("NumericsError: no") == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_helpers_end_with_the_report(number: signal.Signals, run: Path, tmp_path: Path) -> None:
    """Ctrl-C in a terminal, which all processes get, and a kill of the one that has the lock."""
    place = tmp_path / "place"
    place.mkdir()
    at_work = "os.write(1, b'%d\\n' % os.getpid()); time.sleep(600)"
    with start(run, place / "r", 3, at_work, at_work) as drawn:
        assert drawn.stdout is not None
        assert drawn.stderr is not None
        found = {int(drawn.stdout.readline()) for _ in range(3)}
        assert drawn.pid in found
        if number == signal.SIGINT:
            os.killpg(drawn.pid, number)
        else:
            drawn.kill()
        # Each ends once the last process has closed it.
        assert drawn.stdout.read() == ""
        said = drawn.stderr.read()
    assert said.count("Traceback") == (number == signal.SIGINT)
    assert bool(list(place.iterdir())) == (number == signal.SIGKILL)
    write_report([run], place / "r", quiet=True)
    assert [path.name for path in place.iterdir()] == ["r"]


def test_the_style_is_seaborns() -> None:
    """Its settings and palettes, without its import."""
    import seaborn as sns

    own = {"axes.spines.top", "axes.spines.right", "axes.titlesize", "lines.linewidth", "legend.frameon"}
    wanted = {**sns.axes_style("ticks"), **sns.plotting_context("paper", font_scale=1.05)}
    with style():
        for name, value in wanted.items():
            if name not in (*own, "image.cmap"):
                found = matplotlib.rcParams[name]
                if isinstance(value, float):
                    assert found == pytest.approx(value), name
                else:
                    assert found == value or float(found) == float(value), name
    np.testing.assert_allclose(palette(12), sns.color_palette("colorblind", 12))
    for count in (1, 2, 4, 7):
        np.testing.assert_allclose(shades(count), sns.color_palette("viridis", count))


def test_a_report_imports_neither_seaborn_nor_torch(run: Path, tmp_path: Path) -> None:
    """Each would take longer than the figures."""
    program = (
        "import sys; from landscape.cli.main import run; "
        f"run(['report', {str(run)!r}, '--out', {str(tmp_path / 'r')!r}, '--quiet']); "
        "print({'seaborn', 'torch', 'scipy.stats'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "set()"


def test_a_power_law_is_scipys() -> None:
    """Slope, factor, R^2 and interval of noisy points, as linregress and Student's t give them."""
    rng = np.random.default_rng(1)
    for count in (3, 5, 40):
        x = np.exp(rng.standard_normal(count))
        y = 3 * x**-0.7 * np.exp(rng.standard_normal(count))
        found, fit = PowerLaw(x, y), stats.linregress(np.log(x), np.log(y))
        half = stats.t.ppf(0.975, count - 2) * fit.stderr
        expected = (fit.slope, np.exp(fit.intercept), fit.rvalue**2, half)
        np.testing.assert_allclose((found.slope, found.factor, found.r_squared, found.half_width), expected, rtol=1e-9)
    assert PowerLaw(np.array([1.0, 2, 3]), np.ones(3)).r_squared == 0


def test_powers_of_ten_are_plain_letters() -> None:
    """The ticks of log axes need no typesetting, and read as Matplotlib's."""
    figure = new_figure(1)
    (axis,) = figure.axes
    axis.plot([1e-3, 2e3], [-1e3, 2e3])
    axis.set(xscale="log", yscale="symlog")

    def labels() -> list[str]:
        return [label.get_text() for label in (*axis.get_xticklabels(), *axis.get_yticklabels())]

    typeset = labels()
    assert all("$" in label for label in typeset)
    plain_powers(figure)
    assert labels() == [plain_power(label) for label in typeset]
    assert {"10⁻³", "10⁰", "10³", "−10²", "0"} <= set(labels())
    assert plain_power(r"$\mathdefault{2\times10^{3}}$") == "2×10³"


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_characters_that_no_font_has_are_told_of_once(
    jobs: int, users_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever draws them: figures have boxes, no warning ends the report, and the page has the names."""
    mine = foreign.TINY.replace('"first"', '"第一"').replace('"last"', '"層"')
    (tmp_path / "mine.py").write_text(mine)
    config = HessianConfig(problem=f"{tmp_path}/mine.py:problem", steps="0,9", k=2, device="cpu")
    analyse(users_run, config, quiet=True)
    capsys.readouterr()
    page = write_report([users_run], tmp_path / "report", quiet=True, jobs=jobs)
    told = "note: figures show boxes for 一層第, which none of their fonts has\n"
    assert capsys.readouterr().err == told
    assert "第一,層" in page.read_text()
