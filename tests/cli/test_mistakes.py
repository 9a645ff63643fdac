"""What the system refuses, and values beyond all bounds: one error, one hint, quickly, and no traceback."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

from landscape.cli import main as cli
from landscape.config import AnalysisConfig, HessianConfig, TrainConfig
from landscape.errors import ConfigError, FileError
from landscape.sweep.plan import MOST_RUNS, SweepConfig
from landscape.sweep.workers import Workers
from landscape.training.ensemble import MOST_RUNS as SIDE_BY_SIDE

SMALL = ["--p", "7", "--embed-dim", "4", "--hidden", "8", "--batch-size", "16", "--steps", "2", "--quiet"]
QUICK = 1.0
"""CPU seconds that a refusal may take, imports aside."""
Refusal = Callable[..., None]


@pytest.fixture
def run_file(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(tiny_run, tmp_path / "run.h5"))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Run a command that must end with this code, and print one error and one hint that hold these words."""

    def check(argv: list[Any], code: int, error: str, hint: str) -> None:
        assert cli.run(list(map(str, argv))) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        first, second, *rest = captured.err.splitlines()
        assert first.startswith("error: ")
        assert error in first
        assert second.startswith("hint: ")
        assert hint in second
        assert rest == []

    return check


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """As root, too, permissions count inside the block."""
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    # Effective, permitted and inheritable in two words each; 0xf are the rights to pass over permissions of files.
    less = (ctypes.c_uint32 * 6)(before[0] & ~0xF, *before[1:])
    assert libc.capset(header, less) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk with room for files of this many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def landscape(*argv: str | bytes, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """`landscape` in a process of its own."""
    command = [sys.executable, "-m", "landscape", *argv]
    return subprocess.run(command, **{"capture_output": True, "timeout": 120, **options})


# --- places ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_a_missing_folder_is_made(flag: str, tmp_path: Path, run_file: Path) -> None:
    """--resume starts a run that is not there, and --overwrite replaces nothing: in a new folder, too."""
    out = tmp_path / "new" / "folder" / "run.h5"
    assert cli.run(["train", "--out", str(out), *SMALL, flag]) == 0
    point = tmp_path / "other" / "point.h5"
    argv = ["critical", "--ckpt", str(run_file), "--step", "60", "--out", str(point), "--search-products", "50"]
    assert cli.run([*argv, "--quiet", flag]) in (0, 3)
    assert point.exists()


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_a_folder_that_cannot_be_made(flag: str, run_file: Path, refused: Refusal) -> None:
    """A file where a folder should be is named."""
    inside = run_file / "x.h5"
    refused(["train", "--out", inside, *SMALL, flag], 1, f"cannot write in {run_file}", "--out")
    argv = ["critical", "--ckpt", run_file, "--step", "60", "--out", inside, flag]
    refused(argv, 1, str(run_file), "--out" if flag == "--overwrite" else "")


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_a_folder_without_permission(flag: str, tmp_path: Path, run_file: Path, refused: Refusal) -> None:
    """Every command that writes names the folder that it cannot write in."""
    locked = tmp_path / "locked"
    locked.mkdir()
    shutil.copy(run_file, locked / "run.h5")
    locked.chmod(0o555)
    with without_privileges():
        refused(["train", "--out", locked / "run.h5", *SMALL, flag], 1, f"cannot write in {locked}", "--out")
        refused(["hessian", "--ckpt", locked / "run.h5"], 1, f"cannot write in {locked}", "--out")
        refused(["critical", "--ckpt", locked / "run.h5", "--step", "60"], 1, f"cannot write in {locked}", "--out")
        refused(["report", run_file, "--out", locked / "r"], 1, f"cannot write in {locked}", "--out")
    assert [path.name for path in locked.iterdir()] == ["run.h5"]


def test_a_file_without_permission(run_file: Path, tmp_path: Path, refused: Refusal) -> None:
    """Files that may not be read, as input and as config."""
    config = tmp_path / "c.json"
    config.write_text("{}")
    for path in (run_file, config):
        path.chmod(0)
    with without_privileges():
        refused(["info", run_file], 1, f"{run_file}: Permission denied", "owner")
        refused(["train", "--config", config], 1, "Permission denied", "--config")


def test_a_lock_of_another_user(tmp_path: Path, refused: Refusal) -> None:
    """A lock that may not be opened is named, and stays."""
    lock = tmp_path / "run.h5.lock"
    lock.touch()
    lock.chmod(0)
    with without_privileges():
        refused(["train", "--out", tmp_path / "run.h5", *SMALL], 1, str(lock), "move it away")
    assert list(tmp_path.iterdir()) == [lock]


@pytest.mark.parametrize("room", [0, 2_000, 60_000])
def test_a_full_disk(room: int, run_file: Path, tmp_path: Path, refused: Refusal) -> None:
    """Reports, slices and files of any kind end in one error, and leave nothing half-written in their place."""
    before = sorted(tmp_path.iterdir())
    with files_of_at_most(room):
        refused(["report", run_file, "--quiet", "--out", tmp_path / "r"], 1, "File too large", "ulimit -f")
        refused(["slice", "--ckpt", run_file, "--step", "60", "--out", tmp_path / "s"], 1, "File too large", "ulimit")
        # Without room for as much as a lock, that is what the system refuses.
        error, hint = ("bytes free", "free some space") if room else ("File too large", "ulimit -f")
        refused(["train", "--out", tmp_path / "x.h5", *SMALL, "--checkpoint-every", "1"], 1, error, hint)
        refused(["hessian", "--ckpt", run_file, "--quiet"], 1, error, hint)
        argv = ["critical", "--ckpt", run_file, "--step", "60", "--search-products", "9", "--quiet"]
        refused(argv, 1, error, hint)
    assert {*before, tmp_path / "s"} >= set(tmp_path.iterdir())


def test_a_sweep_on_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sweep's own page, and its runs."""
    config = tmp_path / "sweep.json"
    train = {"p": 7, "embed_dim": 4, "hidden": 8, "batch_size": 16, "steps": 2}
    config.write_text(json.dumps({"name": "s", "train": train}))
    argv = ["sweep", "--config", str(config), "--out", str(tmp_path / "out"), "--jobs", "1", "--quiet"]
    for room in (0, 2_000):
        with files_of_at_most(room):
            assert cli.run(argv) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert [line.split(":")[0] for line in captured.err.splitlines()] == ["error", "hint"], captured.err
    assert cli.run(argv) == 0


def test_a_failure_in_a_worker_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """What the system refuses a worker is no traceback; a bug is one."""
    with Workers(1) as workers:
        [(reason, *_)] = workers.run(os.listdir, [("/nowhere",)])
        assert reason == ("/nowhere: No such file or directory", "check the path")
        assert "Traceback" not in capfd.readouterr().err
        [(reason, *_)] = workers.run(divmod, [(1, 0)])
    assert reason is not None
    assert reason[0].startswith("ZeroDivisionError")
    assert "Traceback" in capfd.readouterr().err


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that no user can make keeps its traceback."""
    with pytest.raises(ZeroDivisionError):
        cli.run(["info", _Raises(ZeroDivisionError())])  # type: ignore[list-item]


class _Raises(str):
    """An argument that raises as soon as it is looked at."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __new__(cls, error: Exception) -> _Raises:
        return super().__new__(cls)

    def __eq__(self, other: object) -> bool:
        raise self.error

    def __hash__(self) -> int:
        raise self.error


@pytest.mark.parametrize("length", [245, 300, 5000])
def test_too_long_names(length: int, tmp_path: Path, run_file: Path, refused: Refusal) -> None:
    """As output and as input, in the middle of a path too."""
    name = "x" * length + ".h5"
    for flag in ("--quiet", "--resume", "--overwrite"):
        refused(["train", "--out", tmp_path / name, *SMALL, flag], 1, "File name too long", "")
    refused(["hessian", "--ckpt", run_file, "--out", tmp_path / name], 1, "File name too long", "")
    if length > 255:
        refused(["info", tmp_path / name], 1, "File name too long", "a shorter name")
        refused(["report", run_file, "--out", tmp_path / name], 1, "File name too long", "a shorter name")
        refused(["train", "--out", tmp_path / ("y" * length) / name, *SMALL], 1, "File name too long", "")


# --- numbers --------------------------------------------------------------------------------------------------

HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--seed", str(1 << 64)], "seed cannot be 18446744073709551616"),
        (["--seed", "-1"], "seed is -1"),
        (["--seed", HUGE], "seed cannot be 10000"),
        (["--steps", HUGE], "steps cannot be 10000"),
        (["--steps", str(1 << 63)], "steps is 9223372036854775808"),
        (["--lr", "1e999"], "lr is inf"),
        (["--p", "70001"], "p is 70001"),
        (["--p", HUGE], "p cannot be 10000"),
        (["--task", "div", "--p", "1000000"], "p is 1000000"),
        (["--task", "div", "--p", "65535"], "p is 65535, not a prime"),
        (["--seeds", "30000"], "30,000 runs side by side"),
        (["--seeds", HUGE], "runs side by side"),
        (["--vary", "lr=" + ",".join(map(str, range(1, 30_001)))], "30,000 runs side by side"),
        (["--vary", "lr=" + ",".join("123"), *["lr_ratio=1,2,3,4,5,6,7,8,9", "weight_decay=0,1"] * 9], "side by side"),
        (["--checkpoint-at", *map(str, range(30_000))], "leaves the run's steps"),
    ],
    ids=lambda value: "-".join(value)[:30] if isinstance(value, list) else "",
)
def test_numbers_beyond_bounds(flags: list[str], error: str, tmp_path: Path, refused: Refusal) -> None:
    """Refused within a second, with nothing written."""
    started = time.process_time()
    refused(["train", "--out", tmp_path / "x.h5", *flags], 2, error, "")
    assert time.process_time() - started < 3 * QUICK
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sizes", [["--p", "65521"], ["--hidden", "999999999999"], ["--embed-dim", HUGE[:15]]])
def test_a_run_that_cannot_fit(sizes: list[str], tmp_path: Path, refused: Refusal) -> None:
    """A run or file beyond all bounds is refused before anything is made."""
    refused(["train", "--out", tmp_path / "x.h5", *sizes], 2, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("steps", ["²", "1,,2", "٣", "1e3", "-1", ",", "", "0x10", "1_000"])
def test_steps_are_plain_numbers(steps: str, run_file: Path, refused: Refusal) -> None:
    """Digits as int() takes them are more than a list of steps may hold."""
    refused(["hessian", "--ckpt", run_file, "--steps", steps], 2, "is no list of steps", "0,100,2000")


@pytest.mark.parametrize("steps", ["9" * 20, f"0,{2**63}", "1" * 30, " 61 "])
def test_a_step_that_is_not_stored(steps: str, run_file: Path, refused: Refusal) -> None:
    """However large, it is named, and so are the nearest ones."""
    step = steps.split(",")[-1].strip()
    for argv in (["hessian", "--steps", steps], ["critical", "--step", step], ["slice", "--step", step]):
        refused([*argv, "--ckpt", run_file], 1, f"holds no step {step}", "the nearest stored steps: 56, 60")


@pytest.mark.parametrize("steps", [HUGE, "0," + "1" * 31, "1" * 5000])
def test_a_step_beyond_all_runs(steps: str, run_file: Path, refused: Refusal) -> None:
    """A number that is too long to be printed is cut short."""
    refused(["hessian", "--ckpt", run_file, "--steps", steps], 2, "is too large", "no run has more than 2^53 steps")


@pytest.mark.parametrize(
    ("command", "flags", "error"),
    [
        ("hessian", ["--k", HUGE], "k cannot be"),
        ("hessian", ["--k", "999999999999"], "k is 999999999999"),
        ("hessian", ["--seed", str((1 << 64) - 1)], "seed is 18446744073709551615"),
        ("slice", ["--points", "99999999999"], "points is 99999999999"),
        ("slice", ["--points", "1"], "points is 1"),
        ("slice", ["--plane-points", "1"], "plane_points is 1"),
        ("slice", ["--plane-points", "9999999"], "plane_points is 9999999"),
        ("slice", ["--k", "99999"], "k is 99999"),
        ("critical", ["--search-products", HUGE], "search_products is"),
        ("critical", ["--search-products", "-1"], "search_products is -1"),
        ("critical", ["--grad-tol", "nan"], "grad_tol is nan"),
        ("sweep", ["--jobs", "0"], "jobs is 0"),
        ("sweep", ["--jobs", HUGE], "jobs is"),
    ],
)
def test_other_numbers_beyond_bounds(
    command: str, flags: list[str], error: str, run_file: Path, refused: Refusal
) -> None:
    """The same for the other commands."""
    given = {"sweep": ["--config", run_file], "hessian": ["--ckpt", run_file]}
    refused([command, *given.get(command, ["--ckpt", run_file, "--step", "60"]), *flags], 2, error, "takes")


def test_a_slice_beyond_all_floats(run_file: Path, tmp_path: Path, refused: Refusal) -> None:
    """A radius at which the loss overflows."""
    argv = ["slice", "--ckpt", run_file, "--step", "60", "--radius", "1e300", "--out", tmp_path / "s"]
    refused(argv, 1, "the objective overflows", "lower --radius")


@pytest.mark.parametrize(
    ("command", "text", "key"),
    [
        ("train", '{"p": 7, "lr": 0.1, "p": 11}', "p"),
        ("train", '{"p": 7, "p": 7}', "p"),
        ("sweep", '{"name": "a", "name": "b"}', "name"),
        ("sweep", '{"cases": {"a": {}, "b": {}, "a": {"p": 7}}}', "a"),
        ("sweep", '{"hessian": [{"k": 1, "tol": 0.1, "k": 2}]}', "k"),
    ],
)
def test_a_key_that_is_set_twice(command: str, text: str, key: str, tmp_path: Path, refused: Refusal) -> None:
    """JSON would take the last value; here, however deep it stands, neither is taken."""
    path = tmp_path / "c.json"
    path.write_text(text)
    refused(
        [command, "--config", path, "--out", tmp_path / "x.h5"], 2, f"{path} sets {key!r} twice", "keep one of the two"
    )
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[" * 100_000 + "]" * 100_000, "is nested too deeply"),
        ('{"lr": ' + "[" * 100_000 + "]" * 100_000 + "}", "is nested too deeply"),
        (f'{{"seed": {HUGE}}}', "seed cannot be 1000"),
        (f'{{"lr": {HUGE}}}', "lr cannot be 1000"),
        (f'{{"checkpoint_at": [1, {HUGE}]}}', "checkpoint_at cannot be"),
        (f'{{"seed": {"9" * 5000}}}', "is not JSON"),
        ('{"lr": NaN}', "lr is nan"),
        ('{"lr": 1e999}', "lr is inf"),
        ('{"\\ud800": 1}', "unknown config key"),
        ('{"\\u001b[31m": 1}', "unknown config key"),
        ("\ufeff{}", "is not JSON"),
        ("", "is not JSON"),
        ("null", "holds no JSON object"),
        ('"' + "x" * (1 << 21) + '"', "more than 1,048,576 bytes"),
    ],
    ids=range(14),
)
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_hostile_config_files(command: str, text: str, error: str, tmp_path: Path, refused: Refusal) -> None:
    """JSON that Python reads and no run can have."""
    path = tmp_path / "c.json"
    path.write_text(text)
    if command == "sweep" and error.split()[0] in ("seed", "lr", "checkpoint_at"):
        path.write_text(json.dumps({"train": {}, "cases": {"base": {}}}).replace('"base": {}', f'"base": {text}'))
        error = error if "seed" not in text else "seed"
    refused([command, "--config", path, "--out", tmp_path / "x.h5"], 2, error, "")


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": list(range(30_000))},
        {"cases": {f"c{i}": {} for i in range(30_000)}},
        {"grid": {"lr": [i / 1000 for i in range(1, 1001)], "weight_decay": [i / 1e4 for i in range(1000)]}},
        {"grid": {f"x{i}": list(range(10)) for i in range(5_000)}},
        {"hessian": [{}] * 100_000},
        {"seeds": [0] * MOST_RUNS},
        {"hessian": [{"name": "a", "seeds": list(range(100_000))}]},
        {"seeds": list(range(MOST_RUNS)), "grid": {"lr": [0.1]}, "train": {"p": 1}},
    ],
    ids=range(8),
)
def test_sweeps_of_millions(changes: dict[str, Any], tmp_path: Path, refused: Refusal) -> None:
    """Too many cells are counted, not made."""
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(changes))
    started = time.process_time()
    refused(["sweep", "--config", path, "--out", tmp_path / "out"], 2, "", "")
    assert time.process_time() - started < 3 * QUICK
    assert list(tmp_path.iterdir()) == [path]


def test_the_largest_that_is_taken() -> None:
    """The bounds refuse nothing that works."""
    assert len(SweepConfig(seeds=tuple(range(500))).seeds) == 500
    assert TrainConfig(seed=(1 << 64) - 1, steps=1 << 53, p=65_521, task="div").p == 65_521
    assert AnalysisConfig(seed=-(1 << 63)).seed < 0
    assert HessianConfig(steps=" 1, 20 ,300").steps
    with pytest.raises(ConfigError, match="p is 65537"):
        TrainConfig(p=65_537)
    assert SIDE_BY_SIDE <= MOST_RUNS


# --- streams and names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ('"$@" info RUN >&-', 0, b"", b""),
        ('"$@" info RUN 2>&- | head -c 6', 0, b"run.h5", b""),
        ('"$@" info MISSING >&- 2>&-', 1, b"", b""),
        ('"$@" info RUN --json </dev/null | head -c 3', 0, b'{"p', b""),
        ('"$@" train --help | head -c 5', 0, b"usage", b""),
        ('"$@" check BROKEN | true', 1, b"", b""),
        ('"$@" info RUN >/dev/full', 1, b"", b"error: standard output: No space left on device\nhint: free some "),
        ('"$@" --help >/dev/full', 1, b"", b"error: standard output: No space left on device\nhint: free some "),
        ('"$@" train --hiden 2>/dev/full', 2, b"", b""),
        ('"$@" train --hiden 2>&1 | true', 2, b"", b""),
    ],
)
def test_standard_streams(line: str, code: int, out: bytes, err: bytes, run_file: Path) -> None:
    """Closed, full and abandoned streams: the exit code is the command's own, and nobody else hears of it."""
    broken = Path(shutil.copy(run_file, run_file.with_name("broken.h5")))
    with h5py.File(broken, "r+") as file:
        file["checkpoints/W"][0, 0, 0] += 1
    line = line.replace("RUN", run_file.name).replace("BROKEN", broken.name).replace("MISSING", "missing.h5")
    command = ["bash", "-c", f"set -o pipefail; {line}", "-", sys.executable, "-m", "landscape"]
    done = subprocess.run(command, capture_output=True, cwd=run_file.parent, timeout=120)
    assert done.returncode == code, done.stderr
    assert done.stdout == out
    assert done.stderr.startswith(err) if err else done.stderr == b""


def test_closed_streams_take_no_file(tmp_path: Path) -> None:
    """With stdout and stderr closed, no file gets their numbers, in which stray prints would end."""
    out = tmp_path / "run.h5"
    line = f'"$@" train --out {out} {" ".join(SMALL[:-1])} >&- 2>&- <&-'
    done = subprocess.run(["bash", "-c", line, "-", sys.executable, "-m", "landscape"], timeout=120)
    assert done.returncode == 0
    assert cli.run(["check", str(out)]) == 0


@pytest.mark.parametrize("argv", [["--help"], ["train", "--help"], ["train", "--hiden", "3"], ["hessian"], []])
def test_a_terminal_of_ascii(argv: list[str]) -> None:
    """Whatever is printed, help and usage errors too, is told with ASCII if need be."""
    done = landscape(*argv, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.stdout + done.stderr).isascii()
    assert b"Traceback" not in done.stderr
    assert done.returncode == (0 if "--help" in argv else 2)
    assert bool(done.stdout) == ("--help" in argv)
    if done.returncode:
        first, second = done.stderr.decode().splitlines()
        assert first.startswith("error: ")
        assert len(first) > 20
        assert second.startswith("hint: ")


@pytest.mark.slow
def test_progress_in_ascii(run_file: Path, tmp_path: Path) -> None:
    """Bars, captions and tables, too."""
    ascii_only = {"env": {**os.environ, "PYTHONIOENCODING": "ascii"}}
    out, step = ["--out", str(tmp_path / "x")], ["--step", "60"]
    for argv in (
        ["train", "--out", str(tmp_path / "x.h5"), *SMALL[:-1]],
        ["slice", "--ckpt", str(run_file), *step, *out],
        ["report", str(run_file), "--out", str(tmp_path / "é")],
        ["critical", "--ckpt", str(run_file), *step, "--search-products", "9"],
    ):
        done = landscape(*argv, **ascii_only)
        assert done.returncode in (0, 3), done.stderr
        assert (done.stdout + done.stderr).isascii()


@pytest.mark.slow
def test_names_that_are_not_utf8(run_file: Path, tmp_path: Path) -> None:
    """Every command takes such names for inputs and outputs; stdout and reports show them escaped."""
    folder = os.fsencode(tmp_path)
    run, trained = folder + b"/caf\xe9.h5", folder + b"/n\xffew/b.h5"
    os.rename(run_file, run)
    for argv in (
        ["train", "--out", trained, *SMALL],
        ["info", run],
        ["check", run],
        ["hessian", "--ckpt", run, "--steps", "0,60", "--blocks", "E", "W", "E,W", "--quiet"],
        ["report", run, "--out", folder + b"/r\xe9", "--quiet"],
        ["slice", "--ckpt", run, "--step", "60", "--out", folder + b"/s\xe9"],
        ["critical", "--ckpt", run, "--step", "60", "--search-products", "9", "--quiet"],
        ["info", folder + b"/caf\xe9.critical-60.h5"],
    ):
        done = landscape(*argv)
        assert done.returncode in (0, 3), (argv, done.stderr)
        assert done.stderr == b""
        assert done.stdout.isascii() or argv[0] == "slice"
        done.stdout.decode()
    done = landscape("info", run, "--json")
    assert os.fsencode(json.loads(done.stdout)["path"]) == run
    for page in ("report.md", "report.html"):
        assert r"caf\udce9" in Path(os.fsdecode(folder + b"/r\xe9"), page).read_text().replace("\\\\", "\\")
    done = landscape("info", folder + b"/no\xe9.h5")
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: ")
    assert rb"no\udce9.h5 does not exist" in done.stderr


def test_only_the_systems_errors_are_told_as_mistakes() -> None:
    """An error without a number of the system is a bug."""
    from landscape.errors import as_landscape_error

    assert isinstance(as_landscape_error(FileNotFoundError(2, "x", "name")), FileError)
    assert as_landscape_error(OSError("no number")) is None
    assert as_landscape_error(ValueError("x")) is None


@pytest.mark.parametrize("out", ["", ".", "/"])
def test_an_output_without_a_name(
    out: str, run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refusal
) -> None:
    """An unset variable of the shell as --out, or a folder."""
    monkeypatch.chdir(tmp_path)
    folder = "/" if out == "/" else "."
    refused(["train", *SMALL, "--out", out], 1, f"{folder} is a folder", "name the .h5 file")
    refused(["hessian", "--ckpt", out, "--quiet"], 1, f"{folder} is a folder", "name the .h5 file")


def test_a_wrong_choice_is_answered_with_the_right_ones(tmp_path: Path, refused: Refusal) -> None:
    """In a JSON file as on the command line."""
    config = tmp_path / "config.json"
    config.write_text('{"task": "ad"}')
    argv = ["train", *SMALL, "--config", config, "--out", tmp_path / "a.h5"]
    refused(argv, 2, "task cannot be 'ad'", "add, sub, mul, div, squares")
