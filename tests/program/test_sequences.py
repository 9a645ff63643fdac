"""Any sequence of commands, kills and Ctrl-C keeps what was acknowledged, and ends as if nothing had happened."""

from __future__ import annotations

import dataclasses
import random
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import h5py
import pytest
from conftest import TINY
from helpers import faults, sequences
from helpers.apart import MEMORY, Kill, Outcome, acknowledging, run_here
from helpers.marking import cases
from helpers.sequences import Kind, Ledger, beside
from helpers.sequences_analyses import Critical, Hessian, Report, Sweep
from helpers.sequences_train import Ensemble, Run
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from landscape.errors import FileError
from landscape.files.runs import RunReader
from landscape.files.writer import Writer
from landscape.training.loop import train

SHORT = dataclasses.replace(TINY, steps=110, checkpoint_every=10, checkpoint_log=8, metrics_every=5)


class Sequences(RuleBasedStateMachine):
    """Commands of a kind of the torture run, drawn and stopped by Hypothesis, in this process."""

    kind: type[Kind]

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.subject = self.kind(self.folder, lambda options: data.draw(st.sampled_from(options)))
        self.ledger = Ledger(self.folder, self.subject.strangers())

    @rule(
        data=st.data(),
        at=st.one_of(st.integers(1, 40), st.integers(1, 400)),
        share=st.sampled_from([0.0, 0.5, 1.0]),
        number=st.sampled_from([signal.SIGKILL, signal.SIGINT]),
    )
    def command_that_is_stopped(self, data: st.DataObject, at: int, share: float, number: int) -> None:
        self.step(data, Kill(at=at, share=share, number=number))

    @rule(data=st.data())
    def command(self, data: st.DataObject) -> None:
        self.step(data, None)

    def step(self, data: st.DataObject, kill: Kill | None) -> None:
        command = self.subject.command(lambda options: data.draw(st.sampled_from(options)))
        sequences.step(self.ledger, self.subject, command, kill, run_here)
        assert not self.ledger.harm, self.ledger.harm

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            try:
                sequences.settle(self.ledger, self.subject, run_here)
                assert not self.ledger.harm, self.ledger.harm
            finally:
                shutil.rmtree(self.folder)


def machine(kind: type[Kind], examples: int) -> Any:
    """The test of a kind with so many sequences."""
    case = type(f"{kind.__name__}Sequences", (Sequences,), {"kind": kind}).TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=4, suppress_health_check=list(HealthCheck))
    return pytest.mark.long(case)


# About 25 sequences of two or three commands each, of which half are stopped; others every time. The torture run draws
# thousands.
TestRun = machine(Run, 14)
TestEnsemble = machine(Ensemble, 3)
TestHessian = machine(Hessian, 4)
TestCritical = machine(Critical, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases([Run, Ensemble, Hessian, Critical], long=[Hessian, Critical]))
def test_killed_processes(kind: type[Kind]) -> None:
    """The same with processes that are really killed, as the torture run does at length."""
    acknowledged = 0
    for seed in range(2):
        _, ledger = sequences.run_sequence(kind, random.Random(seed), most=4)
        assert not ledger.harm, ledger.harm
        acknowledged += ledger.acknowledged
    assert acknowledged > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases([Report, Sweep], long=[Sweep]))
def test_processes_stopped_ever_later(kind: type[Kind]) -> None:
    """SIGKILL and Ctrl-C at growing numbers of seconds, of commands that take long or have processes of their own."""
    kills = [Kill(after=0.2), Kill(after=0.6, number=signal.SIGINT), Kill(after=1.5), Kill(3.0, number=signal.SIGINT)]
    _, ledger = sequences.run_sequence(kind, random.Random(0), kills)
    assert not ledger.harm, ledger.harm


def test_the_judge_sees_what_is_lost_torn_and_wrong(tmp_path: Path) -> None:
    """A file without a row, one with other bytes, a stranger's file that is gone, and a leftover are named."""
    path = tmp_path / "run.h5"
    ledger = Ledger(tmp_path, dict.fromkeys(beside(path), b"mine"))
    command = sequences.Command([])
    outcome = Outcome()
    with acknowledging(lambda path, label, row: outcome.acknowledged.append((path, label, row))):
        train(TINY, path, quiet=True)
    ledger.update(command, None, outcome, {})
    ledger.judge()
    ledger.judge_leftovers()
    assert (ledger.harm, ledger.acknowledged) == ([], len(faults.served_run(path)))
    with h5py.File(path, "r+") as file:
        file["checkpoints/W"][1, 0, 0] += 1
        file["tokens/crc32"][2] = 0
    next(iter(ledger.strangers)).unlink()
    (tmp_path / "x.tmp").touch()
    ledger.judge()
    ledger.judge_leftovers()
    assert (len(ledger.lost), len(ledger.torn), len(ledger.wrong)) == (3, 1, 2), ledger.harm
    ledger.update(command, None, Outcome(code=1, said="error: something"), {})
    assert "ended with 1: error: something" in ledger.wrong[-1]
    # Ctrl-C that Python itself loses is no word of ours; anywhere else a traceback is.
    lost = "Exception ignored in: <function remove>\nTraceback (most recent call last):\n  at\n\nKeyboardInterrupt: \n"
    for kill, said, wrongs in ((Kill(at=1, number=signal.SIGINT), lost, 3), (None, lost, 4)):
        ledger.update(command, kill, Outcome(said=said), {})
        assert len(ledger.wrong) == wrongs


@pytest.mark.parametrize(
    "changes",
    [
        [{"steps": 130}],
        [{"steps": 112}],
        [{"metrics_every": 25, "steps": 140}],
        [{"checkpoint_every": 100, "steps": 300}],
        [{"checkpoint_every": 0, "checkpoint_log": 0, "checkpoint_at": (111,), "steps": 115}],
        [{"steps": 150}, {"steps": 175}, {"steps": 210}],
        [{"steps": 121, "metrics_every": 100}, {"steps": 122}, {"steps": 123}, {"steps": 124, "checkpoint_every": 1}],
        [{"stop_test_accuracy": 0.001, "extra_steps": 13, "steps": 400}, {"steps": 401, "metrics_every": 7}],
    ],
    ids=str,
)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_an_extended_run_keeps_every_checkpoint(changes: list[dict[str, Any]], optimizer: Any, tmp_path: Path) -> None:
    """Whatever schedule a run is extended with, it ends whole, and as a run of the last schedule alone does."""
    path, config = tmp_path / "run.h5", dataclasses.replace(SHORT, optimizer=optimizer)
    train(config, path, quiet=True)
    stored = faults.served_run(path)
    for change in changes:
        config = dataclasses.replace(config, **change)
        train(config, path, resume=True, quiet=True)
        served = faults.served_run(path)
        assert stored.items() <= served.items()
        stored = served
    with RunReader(path) as reader:
        reader.require_whole()
    alone = tmp_path / "alone.h5"
    train(config, alone, quiet=True)
    expected = faults.served_run(alone)
    assert {step: stored[step] for step in stored.keys() & expected.keys()}.items() <= expected.items()
    assert max(stored) >= max(expected)


@pytest.mark.parametrize("group", ["checkpoints", "metrics"])
def test_a_row_beyond_the_room_is_refused_before_a_byte_is_touched(group: str, tmp_path: Path) -> None:
    """The file is afterwards, byte for byte, what it was."""
    path = tmp_path / "run.h5"
    train(TINY, path, quiet=True)
    with RunReader(path) as reader:
        rows = {name: table.row(0) for name, table in reader.tables.items()}
        count = len(reader.tables[group].rows)
    # Trimmed to its rows, it has room for none.
    with Writer.extend(path, {}, {"metrics": 1} if group != "metrics" else {}) as writer:
        before = path.read_bytes()
        with pytest.raises(FileError, match=rf"has room for {count} rows, and this is row"):
            writer.append_to("metrics", 10**6, rows["metrics"]) if group == "metrics" else writer.append(10**6, rows)
    assert path.read_bytes() == before
