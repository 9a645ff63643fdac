"""Leases: one holder, whatever dies, stands still or has another clock; nothing is left behind."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.apart import SERVER
from helpers.sweeps import wait_for

from landscape.errors import FileError
from landscape.jobs import leases as leasing
from landscape.jobs.leases import Holder, LeasedError, leases

NAME = "base-s0.h5"
FOREIGN: dict[str, Callable[[Path], object]] = {
    "text": lambda place: place.write_text("mine"),
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "link": lambda place: place.symlink_to("nowhere"),
}
"""What another program may put in the place of a lease."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a watch as hundredths."""
    monkeypatch.setattr(leasing, "BEAT", 0.02)
    monkeypatch.setattr(leasing, "PATIENCE", 0.6)


def elsewhere(folder: Path, host: str = "node7", task: str = "") -> Holder:
    """A holder as one of another machine looks: its number says nothing here."""
    holder = Holder(folder, task)
    holder.process = dataclasses.replace(holder.process, host=host, kernel="another")
    return holder


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holder]:
    """A holder of another machine that no longer counts, as after the end of its node."""
    with monkeypatch.context() as patch:
        patch.setattr(Holder, "_beat", lambda self: None)
        holder = elsewhere(tmp_path / "leases", task="12_3")
        holder.__enter__()
    holder.take(NAME)
    yield holder
    holder.__exit__(None, None, None)


def test_one_at_a_time(tmp_path: Path) -> None:
    """A second one is refused, names the first, and has its turn afterwards; then nothing is left."""
    folder = tmp_path / "leases"
    with Holder(folder) as one, elsewhere(folder, task="12_3") as two:
        two.take(NAME)
        assert [(name, str(process)) for name, process in leases(folder)] == [(NAME, str(two.process))]
        with pytest.raises(LeasedError) as refused:
            one.take(NAME)
        assert str(refused.value) == f"{NAME} is being written by pid {os.getpid()} on node7, Slurm job 12_3"
        assert refused.value.hint == "wait for it, or stop it with --cancel"
        two.release(NAME)
        one.take(NAME)
        one.take("other.h5")
    assert not folder.exists()


def test_clocks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live holder stays, whatever the dates of its files and the time of day say."""
    with elsewhere(tmp_path) as two, Holder(tmp_path) as one:
        two.take(NAME)
        for date in (0, 2**31):
            os.utime(tmp_path / NAME, (date, date))
            monkeypatch.setattr(time, "time", lambda date=date: date)
            with pytest.raises(LeasedError):
                one.take(NAME)


def test_a_killed_process_is_followed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its own machine nobody waits; what it left is removed with the lease, or by the next to clear the folder."""
    monkeypatch.setattr(leasing, "PATIENCE", 1e9)
    for names in ([NAME], [NAME, "other.h5"]):
        killed(tmp_path, names)
        with Holder(tmp_path) as mine:
            mine.take(NAME)
            mine.clear()
            assert {name for name, _ in leases(tmp_path)} == {NAME}
        assert not tmp_path.exists()


def test_a_holder_that_stands_still_is_followed(
    silent: Holder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After PATIENCE, once for all its leases; should it wake up, it ends before it counts again."""
    silent.take("other.h5")
    with Holder(silent.folder) as mine:
        began = time.monotonic()
        mine.take(NAME)
        assert time.monotonic() - began >= 0.6
        monkeypatch.setattr(leasing, "PATIENCE", 1e9)
        mine.take("other.h5")
        monkeypatch.setattr(os, "_exit", lambda code: silent._ended.set())
        silent._beat()
        assert f"error: {NAME} was taken over, for this process stood still" in capsys.readouterr().err
        silent.release(NAME)
        silent.release("other.h5")
        assert {str(process) for _, process in leases(silent.folder)} == {str(mine.process)}


def test_a_successor_made_too_late_holds_nothing(silent: Holder) -> None:
    """Between a look at a lease and its succession, it may have been given back and taken by another one."""
    with Holder(silent.folder) as late, elsewhere(silent.folder) as other:
        late._has_ended = lambda place, process: stolen()  # type: ignore[method-assign]

        def stolen() -> bool:
            del late._has_ended
            silent.release(NAME)
            other.take(NAME)
            return True

        with pytest.raises(LeasedError, match=str(other.process)):
            late.take(NAME)
        assert [process.id for _, process in leases(silent.folder)] == [other.process.id]
        silent._held[NAME] = silent.folder / NAME


def test_a_disk_that_fails_ends_the_holder(silent: Holder, capsys: pytest.CaptureFixture[str]) -> None:
    """One that can no longer count ends before others may follow it."""
    os.close(silent._file)
    silent._file = os.open(os.devnull, os.O_RDONLY)
    ends: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", lambda code: (ends.append(code), silent._ended.set()))
        silent._beat()
    assert ends == [1]
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("make", FOREIGN, ids=str)
def test_what_is_no_lease_is_refused(make: str, tmp_path: Path) -> None:
    """What another program put in the place of a lease stays and is named; nobody waits for it."""
    place = tmp_path / NAME
    FOREIGN[make](place)
    with Holder(tmp_path) as mine:
        for command in (lambda: mine.take(NAME), mine.clear):
            with pytest.raises(FileError, match=rf"{NAME} is no lease") as refused:
                command()
            assert refused.value.hint == "another program may have made it: move it away"
    assert os.path.lexists(place)


@pytest.mark.parametrize("make", FOREIGN, ids=str)
def test_what_is_no_holder_is_ignored(make: str, tmp_path: Path) -> None:
    """It holds no lease, and stays whatever its age."""
    place = tmp_path / ("0" * 16 + ".holder")
    FOREIGN[make](place)
    os.utime(place, (0.0, 0.0), follow_symlinks=False)
    with Holder(tmp_path) as mine:
        mine.clear()
        mine.take(NAME)
    assert os.path.lexists(place)


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says so."""

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with Holder(tmp_path) as mine:
        monkeypatch.setattr(os, "link", refused)
        with pytest.raises(FileError, match=r"base-s0\.h5 cannot be made: Operation not permitted"):
            mine.take(NAME)


@pytest.mark.parametrize("seed", range(2))
def test_random_kills_among_many(seed: int, tmp_path: Path) -> None:
    """Of six processes that want three leases one at most holds each, while they are killed and others start."""
    choose = random.Random(seed)
    log = tmp_path / "log"
    log.touch()
    folder = tmp_path / "leases"
    alive = [started(folder, log, choose.random()) for _ in range(6)]
    for _ in range(12):
        size = log.stat().st_size
        wait_for(lambda size=size: log.stat().st_size > size + 200)
        victim = alive.pop(choose.randrange(len(alive)))
        # Before, as another one may follow it at once.
        with log.open("ab") as file:
            file.write(b"dead %d -\n" % victim.pid)
        victim.kill()
        victim.join()
        alive.append(started(folder, log, choose.random()))
    for process in alive:
        os.kill(process.pid, signal.SIGTERM)
        process.join()
    inside: dict[str, str] = {}
    dead: set[str] = set()
    turns = 0
    for line in log.read_text().splitlines():
        what, pid, name = line.split()
        if pid in dead:
            continue
        if what == "in":
            assert name not in inside, f"{pid} and {inside[name]} hold {name}"
            inside[name] = pid
            turns += 1
        elif what == "out":
            assert inside.pop(name) == pid
        else:
            dead.add(pid)
            inside = {held: by for held, by in inside.items() if by != pid}
    assert turns > 20
    # A kill between the making and the first word of a holder's file leaves it empty, which is seen by its age.
    for left in folder.glob("*.holder"):
        os.utime(left, (0.0, 0.0))
    with Holder(folder) as last:
        last.clear()
        assert not list(leases(folder))
    assert not folder.exists()


@pytest.mark.parametrize("age", [0.0, 2.0])
def test_what_a_kill_leaves_before_the_first_word(age: float, tmp_path: Path) -> None:
    """An empty holder's file is removed once it is older than PATIENCE; until then its maker may be about to write."""
    with Holder(tmp_path / "leases") as mine:
        empty = tmp_path / "leases" / ("0" * 16 + ".holder")
        empty.touch()
        now = next(tmp_path.glob(f"leases/{mine.process.id}*")).stat().st_mtime
        os.utime(empty, (now - age, now - age))
        mine.clear()
        assert empty.exists() == (age == 0.0)
        empty.unlink(missing_ok=True)


def killed(folder: Path, names: list[str]) -> None:
    """Leases of a process that is killed while it holds them."""
    child = SERVER.Process(target=_hold, args=(folder, names))
    child.start()
    wait_for(lambda: {name for name, _ in leases(folder)} >= set(names))
    child.kill()
    child.join()


def _hold(folder: Path, names: list[str]) -> None:
    holder = Holder(folder)
    holder.__enter__()
    for name in names:
        holder.take(name)
    signal.pause()


def started(folder: Path, log: Path, seed: float) -> SERVER.Process:  # type: ignore[name-defined]
    child = SERVER.Process(target=_contend, args=(folder, log, seed))
    child.start()
    return child


def _contend(folder: Path, log: Path, seed: float) -> None:
    """Take, say so, say so again and give back, until SIGTERM; who is dead is said by who killed it."""
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    stop: list[bool] = []
    choose = random.Random(seed)
    leasing.BEAT = 0.02
    handle = os.open(log, os.O_WRONLY | os.O_APPEND)
    with Holder(folder) as holder:
        while not stop:
            name = f"{choose.randrange(3)}.h5"
            try:
                holder.take(name)
            except LeasedError:
                continue
            os.write(handle, f"in {os.getpid()} {name}\n".encode())
            time.sleep(choose.random() / 100)
            os.write(handle, f"out {os.getpid()} {name}\n".encode())
            holder.release(name)
