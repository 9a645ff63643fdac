"""What no command takes: each mistake ends in one `error:` and one `hint:` line, its exit code, and no harm."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import h5py
import pytest
from helpers.commands import HUGE, Refusal
from helpers.hessians import HessianReader

from landscape.files import schema

LIST = ",".join(map(str, range(1, 30_001)))
# What is typed; the exit code; words of the error; words of the hint.
USAGE = [
    ("trian", 2, "unknown command 'trian'", "did you mean train?"),
    ("x", 2, "unknown command 'x'", "known: demo, train, import, hessian"),
    ("train --prest demo", 2, "unknown option --prest", "did you mean --preset"),
    ("train --hiden=4", 2, "unknown option --hiden", "did you mean --hidden"),
    ("info --xyzzy", 2, "unknown option --xyzzy", "see landscape info --help"),
    ("info run.h5 b.h5", 2, "unexpected argument 'b.h5'", "see landscape info --help"),
    ("hessian run.h5 --steps 0 60", 2, "unexpected argument '60'", "see landscape hessian --help"),
    ("slice", 2, "landscape slice lacks RUN", "write it first: landscape slice RUN"),
    ("compare", 2, "landscape compare lacks FILE", "write it first: landscape compare FILE"),
    ("hessian --blocks E run.h5", 2, "landscape hessian lacks RUN", "write it first: landscape hessian RUN"),
    ("slice run.h5", 2, "landscape slice lacks --step", "see landscape slice --help"),
    ("import a.pt", 2, "landscape import lacks --out", "see landscape import --help"),
    ("hessian run.h5 --k", 2, "--k lacks its value", "see landscape hessian --help"),
    ("slice run.h5 --step x", 2, "--step is 'x'", "it takes an integer"),
    ("train --lr=fast", 2, "--lr is 'fast'", "it takes a number"),
    ("train --batch-size x", 2, "--batch-size is 'x'", "it takes an integer or full"),
    ("train --lr-ratio x", 2, "--lr-ratio is 'x'", "it takes a number or prop41 or curvature or auto"),
    ("train --betas a 2", 2, "--betas is 'a'", "it takes a number"),
    ("train --tokens 5", 2, "unknown tokens '5'", "known: 2, 3, 4"),
    ("train --task ad", 2, "unknown task 'ad'", "did you mean add?"),
    ("train --preset quikc", 2, "unknown preset 'quikc'", "did you mean quick?"),
    ("completion tcsh", 2, "unknown shell 'tcsh'", "known: bash, zsh, fish"),
    ("compare run.h5 --json --csv", 2, "json and csv are two formats", "give one of them"),
    ("info ''", 2, "FILE is empty", "name a file or folder"),
    ("demo ''", 2, "FOLDER is empty", "name a file or folder"),
    ("compare run.h5 ''", 2, "is empty", "name a file or folder"),
    ("train --out run.pt", 2, "run.pt would be an HDF5 file", "name it run.h5"),
    ("train --out ''", 2, "--out is empty", "name a file or folder"),
    ("train --config=", 2, "--config is empty", "name a file or folder"),
]
FILES = [
    ("hessian none.h5", 1, "none.h5 does not exist", "here are: "),
    ("hessian notes.h5", 1, "is not an HDF5 file", "name a file that"),
    ("report notes.h5 --out r", 1, "is not an HDF5 file", "name a file that"),
    ("hessian cut.h5", 1, "is truncated", "again from its source"),
    ("hessian foreign.h5", 1, "an HDF5 file of another program", "landscape train"),
    ("report foreign.h5 --out r", 1, "is an HDF5 file of another program", "run files or Hessian"),
    ("hessian schema.h5", 1, "of schema 'other.thing', not a run file", "landscape train"),
    (
        "hessian newer.h5",
        1,
        f"version 9.0; this landscape reads {schema.VERSION}",
        "the version of landscape that wrote",
    ),
    ("hessian run.hessian.h5", 1, "is a Hessian file, not a run file", "name the run it was made from"),
    ("train --out run.h5", 1, "run.h5 exists", "--resume"),
    ("train --out run.h5 --resume --lr 0.02", 2, "lr is 0.02, but the run was started with 0.01", "can change only"),
    ("train --out run.h5/sub/x.h5", 1, "cannot write in run.h5/sub", "another place"),
    ("hessian run.h5 --out run.h5/sub/x.h5", 1, "cannot write in run.h5/sub", "another place"),
    ("hessian run.h5 --out run.h5", 1, "is the run file itself", "another --out"),
    (
        "hessian run.h5 --k 10 --certify --curve --density --rtol 1e-3",
        1,
        "it was made with rtol by default, not 0.001",
        "--overwrite",
    ),
    ("report run.h5 --out mine", 2, "exists and is no report with a record", "another folder"),
    ("report run.h5 --out mine --overwrite", 2, "exists and is no report with a record", "another folder"),
    ("train --config none.json", 1, "cannot read none.json", "check the path"),
    ("sweep none.json", 1, "cannot read none.json", "check the path"),
    ("train --config mine", 1, "cannot read mine", "name a file, not a folder"),
]
VALUES = [
    ("hessian run.h5 --steps 55", 1, "holds no step 55", "56, 60"),
    *(
        (f"hessian run.h5 --steps {s}", 2, "is no list of steps", "0,100,2000")
        for s in ("x", "²", "1,,2", "1e3", "0x1")
    ),
    *((f"hessian run.h5 --steps {s}", 2, "is too large", "more than 2^53") for s in (HUGE, "0," + "1" * 31)),
    ("critical run.h5 --step 99999999999999999999", 1, "holds no step 9999", "the nearest stored steps: 56, 60"),
    ("hessian run.h5 --blocks E,w", 2, "the embedding model has no block 'E,w'", "E,W"),
    (f"hessian run.h5 --k {HUGE}", 2, "k cannot be", "takes"),
    ("hessian run.h5 --k 999999999999", 2, "k is 999999999999", "takes"),
    (f"hessian run.h5 --seed {(1 << 64) - 1}", 2, "seed is 18446744073709551615", "takes"),
    ("hessian run.h5 --jobs 0", 2, "jobs is 0", "--jobs takes an integer from 1 to 1024"),
    ("slice run.h5 --step 60 --points 1", 2, "points is 1", "takes"),
    ("slice run.h5 --step 60 --plane-points 9999999", 2, "plane_points is 9999999", "takes"),
    ("critical run.h5 --step 60 --search-hvps -1", 2, "search_hvps is -1", "takes"),
    ("critical run.h5 --step 60 --search-tol nan", 2, "search_tol is nan", "takes"),
    ("settle run.h5 --step 99", 1, "holds no step 99", "56, 60"),
    ("settle run.h5 --step 60 --share 1", 2, "share is 1.0", "--share takes a fraction between 0 and 1"),
    ("settle run.h5 --step 60 --descent-steps -1", 2, "descent_steps is -1", "takes an integer from 0"),
    ("train --task div --p 15", 2, "p is 15, not a prime", "the nearest prime is 13"),
    ("train --task div --p 65535", 2, "p is 65535, not a prime", "the nearest prime is 65521"),
    ("train --p 1", 2, "p is 1; arithmetic mod p needs p >= 2", "59 or 97"),
    ("train --p 70001", 2, "p is 70001", "up to 65536"),
    ("train --train-fraction 1.5", 2, "train_fraction is 1.5", "a fraction between 0 and 1"),
    ("train --test-fraction -0.1", 2, "test_fraction is -0.1", "a fraction between 0 and 1"),
    ("train --test-fraction 0.9", 2, "train_fraction 0.4 + test_fraction 0.9 exceeds 1", "lower one"),
    ("train --lr -1", 2, "lr is -1.0", "--lr takes a number >= 0"),
    ("train --lr nan", 2, "lr is nan", "--lr takes a number >= 0"),
    ("train --lr 1e999", 2, "lr is inf", "a number >= 0"),
    ("train --batch-size 0", 2, "batch_size is 0", "an integer >= 1, or full"),
    ("train --lr-ratio 0", 2, "lr_ratio is 0.0", "prop41 or curvature"),
    ("train --seed -1", 2, "seed is -1", "an integer from 0 to 2^64 - 1"),
    (f"train --seed {1 << 64}", 2, "seed cannot be 18446744073709551616", "below 2^64"),
    (f"train --steps {HUGE}", 2, "steps cannot be 10000", "below 2^64"),
    (f"train --steps {1 << 63}", 2, "steps is 9223372036854775808", "an integer from 0 to 2^53"),
    ("train --checkpoint-at 9999", 2, "checkpoint_at [9999] leaves the run's steps", "raise --steps"),
    ("train --p 65521", 2, "bytes a step; at most 1,073,741,824 are read", "hint: choose a smaller network"),
    ("train --hidden 999999999999", 2, "bytes a step; at most 1,073,741,824 are read", "choose a smaller network"),
]
BEYOND = [
    ("train --seeds 30000", 2, "30,000 runs side by side", "at most 256"),
    (f"train --seeds {HUGE}", 2, "ask for more than 10^12 runs side by side", "at most 256"),
    (f"train --vary lr={LIST}", 2, "30,000 runs side by side", "at most 256"),
]
COMBINATIONS = [
    ("train --model onehot --lr-ratio prop41", 2, "model onehot has no E", "--model embedding"),
    ("train --freeze W --lr-ratio prop41", 2, "but W is frozen", "--freeze none"),
    ("train --model tables --freeze E", 2, "model tables has no E", "leave out --freeze, --lr-ratio"),
    ("train --model tables --lr-ratio 10", 2, "lr_ratio is 10.0, but model tables has no E", "--lr-ratio"),
    ("train --model tables --sampler frequency_aware", 2, "model tables has no E", "lr-ratio and --sampler"),
    ("train --penalty nuclear", 2, "penalty nuclear acts on tables, but the model is embedding", "--model tables"),
    ("train --model transformer --penalty nuclear", 2, "but the model is transformer", "--model tables"),
    ("train --model tables --penalty nuclear --freeze W", 2, "moves the tables W, but W is frozen", "--freeze none"),
    ("train --out run.h5 --resume --overwrite", 2, "resume and overwrite exclude each other", "--resume continues"),
    ("sweep plan.json --pack 4", 2, "pack and slurm are options of Slurm", "add --executor slurm"),
    ("sweep plan.json --executor debug --jobs 2", 2, "executor debug has no workers", "leave out --jobs"),
    ("sweep plan.json --status --cancel", 2, "status and cancel are two commands", "give one of them"),
]


@pytest.fixture
def folder(tiny_run: Path, tiny_hessian: HessianReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the command lines name."""
    monkeypatch.chdir(tmp_path)
    for name in ("run.h5", "schema.h5", "newer.h5"):
        shutil.copy(tiny_run, name)
    shutil.copy(tiny_run.with_name("tiny.hessian.h5"), "run.hessian.h5")
    for name, attribute, value in (("schema.h5", "schema", "other.thing"), ("newer.h5", "schema_version", "9.0")):
        with h5py.File(name, "r+") as file:
            file.attrs[attribute] = value
    with h5py.File("foreign.h5", "w") as file:
        file["x"] = 1
    Path("notes.h5").write_text("hello")
    Path("cut.h5").write_bytes(tiny_run.read_bytes()[:-4000])
    Path("plan.json").write_text('{"name": "a"}')
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("precious")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "code", "error", "hint"), [*USAGE, *FILES, *VALUES, *COMBINATIONS], ids=lambda value: str(value)[:60]
)
def test_refusals(line: str, code: int, error: str, hint: str, folder: Path, assert_refused: Refusal) -> None:
    """In words, before anything is made, and with every file as it was."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert_refused(shlex.split(line), code, error, hint, files)
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == files


@pytest.mark.slow
@pytest.mark.parametrize(("line", "code", "error", "hint"), BEYOND, ids=lambda value: str(value)[:60])
@pytest.mark.usefixtures("nothing_is_made")
def test_what_is_too_much_is_counted(
    line: str, code: int, error: str, hint: str, folder: Path, assert_refused: Refusal
) -> None:
    """And refused without any of it being made."""
    assert_refused(shlex.split(line), code, error, hint)
    assert not Path("checkpoints").exists()
