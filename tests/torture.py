"""All faults at full size; writes docs/reliability.md. Exit status 1 if anything was lost, torn or wrong."""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import torch
from helpers import faults, sequences, sequences_analyses, sequences_train

MODULES = (sequences_train, sequences_analyses)
"""Where the kinds of sequences are registered."""
PAGE = """# Reliability: faults injected and data lost

Small runs and analyses were subjected to the faults below. A row is a checkpoint of a run file or a step of a Hessian
file. *Acknowledged*: rows whose commit had returned before the fault. *Lost*: acknowledged rows that could not be
read afterwards. *Torn*: rows that were read and differ in any bit from an undisturbed file. *Wrong*: files that
differ from the undisturbed one after resuming, or that leave other files behind.

* **SIGKILL** comes at a random instant; 3 of 10 commands are killed again while they resume.
* **Crash at a write**: the process stops before, within or after each write, which is whole, cut at a page of 4 KiB
  or cut in half. One in {resume_every} is resumed.
* **Sequences** are random commands in one folder: runs are started, resumed, extended, repaired and overwritten,
  analyses get more steps, sweeps are repeated. Three in four commands are stopped by SIGKILL or Ctrl-C.
  After every command all acknowledged data are read back with our reader and with plain h5py. At the end no lock or
  temporary file may be left, and all analyses must equal undisturbed ones bit for bit. *Tried* counts commands;
  sequences: {sequences}.
* **Power failure**: any subset of the writes since the last sync reaches the disk, each whole or cut.
* **Fuzzing**: random changes to the objects of valid files, read in a separate process. *Wrong* counts crashes,
  hangs, undocumented errors, and changed numbers that were returned.

| fault | tried | acknowledged | lost | torn | wrong |
|---|---:|---:|---:|---:|---:|
{rows}

## What is not defended against

Every row and array has a checksum, so damage to a number is noticed and the number is not served. Everything that
h5py shows of a file is checked before any data are read: links, virtual datasets, storage in other files, types,
filters, and sizes far beyond the file's. Not defended against are:

* **Forged or spoilt structures of HDF5 itself.** The bytes of a file are not searched; the HDF5 library reads them. A
  file that was made to attack the library can make it crash, hang or take memory in the process that opens it, as in
  every HDF5 program. That is enough for files of your own and of people you trust: damage becomes an error in one
  line, and nothing in a file is executed. Open files of strangers in a process of its own.
* **A gzip chunk made to burst.** A chunk may take twice the bytes it declares, so it unpacks to at most two thousand
  times that.
* **A live file that is moved and then opened for writing under its new name.** The lock belongs to the name. The
  first writer notices when it rewrites the file, and ends with an error.
* **A deleted file of a live recording.** Its rows are gone. The training goes on, with a warning.
* **Shared file systems without locks.** The lock is then a file with host and process. On the machine of a killed job
  it is taken over; elsewhere remove it by hand.

Made by `make torture` in {minutes:.0f} minutes: Python {python}, HDF5 {hdf5}, {system}. The tests do the same with
small numbers at every change. They also cover full disks, two writers, readers of a live run, and files moved while
in use.
"""


def main() -> int:
    """Do everything to everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="SIGKILLs in all")
    parser.add_argument("--power", type=int, default=3000, help="losses of power")
    parser.add_argument("--sequences", type=int, default=4000, help="random sequences of commands and kills at most")
    parser.add_argument("--budget", type=float, default=900, help="seconds for them at most")
    parser.add_argument("--seed", type=int, default=0, help="of the sequences")
    parser.add_argument("--only-sequences", action="store_true", help="print the tallies of the sequences, and no page")
    parser.add_argument("--fuzz", type=int, default=600, help="seconds of fuzzing")
    parser.add_argument("--out", type=Path, default=Path("docs/reliability.md"))
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # The processes started here are compared with this one bit for bit.
    torch.set_num_threads(1)
    started, resume_every = time.monotonic(), 20
    jobs = len(os.sched_getaffinity(0))
    drawn = sequences.torture(sequences.KINDS, args.sequences, args.budget, args.seed, jobs)
    if args.only_sequences:
        print(*drawn, sep="\n")
        return 1 if any(any(t.harm) for t in drawn) else 0
    command = [sys.executable, "-m", "helpers.fuzz_reader", "--seconds", str(args.fuzz)]
    fuzzing = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        faults.undisturbed(folder)
        truth = faults.Undisturbed(folder)
        tallies = [
            *drawn,
            faults.crash_training(folder, truth, 1, resume_every),
            faults.crash_analysis(folder, truth, 1, resume_every),
            faults.lose_power(folder, truth, args.power),
            faults.kill_training(folder, truth, args.kills * 6 // 10),
            faults.kill_training(folder, truth, args.kills // 10, fsync=True),
            faults.kill_analysis(folder, truth, args.kills * 3 // 10),
        ]
    said = fuzzing.communicate()[0]
    match = re.search(r"(\d+) examples: .*; (\d+) served wrong or harmful", said)
    assert match, said
    print(said, file=sys.stderr)
    examples, harmful = map(int, match.groups())
    tallies.append(faults.Tally(f"fuzzing of the readers, {args.fuzz / 60:.0f} minutes", examples, wrong=harmful))
    for tally in tallies:
        print(tally)
    rows = "\n".join(
        f"| {t.fault} | {t.tried:,} | {t.acknowledged:,} | {t.lost} | {t.torn} | {t.wrong} |" for t in tallies
    )
    args.out.write_text(
        PAGE.format(
            rows=rows,
            resume_every=resume_every,
            sequences="; ".join(f"{t.fault.removeprefix('sequences: ')} {t.sequences:,}" for t in drawn),
            minutes=(time.monotonic() - started) / 60,
            python=platform.python_version(),
            hdf5=h5py.version.hdf5_version,
            system=f"{platform.system()} {platform.machine()}",
        ),
        encoding="utf-8",
    )
    return 1 if any(any(t.harm) for t in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
