"""A Slurm of one node: its daemons on 127.0.0.1, with ports, keys and folders of their own."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from helpers.sweeps import wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
MaxArraySize=11
KillWait=5
MinJobAge=2
NodeName=localhost NodeAddr=127.0.0.1 NodeHostname={host} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why no Slurm can be started here; empty if one can."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install slurmctld slurmd slurm-client munge"
    if find_spec("submitit") is None:
        return "submitit not installed: pip install 'landscape-hessian[test]'"
    return "" if os.getuid() == 0 else "slurmd has to be started by root"


@contextlib.contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """A running Slurm of two cores; yields the environment in which its commands reach it."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(ports=ports, folder=folder, host=platform.node()))
    (folder / "key").write_bytes(secrets.token_bytes(128))
    (folder / "key").chmod(0o400)
    env = {**os.environ, "PATH": _path(), "SLURM_CONF": str(config)}
    munge = ["munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge.socket"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    daemons: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> None:
        with (folder / f"{argv[0]}.out").open("wb") as out:
            daemons.append(subprocess.Popen(argv, env=env, stdout=out, stderr=out, start_new_session=True))

    try:
        start(*munge)
        wait_for((folder / "munge.socket").exists)
        start("slurmctld", "-D", "-i")
        start("slurmd", "-D", "-N", "localhost")
        wait_for(lambda: "idle" in said(env, "sinfo", "--noheader", "--format=%T"))
        yield env
    finally:
        if len(daemons) == 3:
            said(env, "scancel", "--me")
            wait_for(lambda: not said(env, "squeue", "--noheader"))
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def said(env: dict[str, str], *argv: str) -> str:
    """What a command of Slurm prints; nothing where it fails."""
    return subprocess.run(argv, env=env, capture_output=True, text=True).stdout


def _path() -> str:
    """Where programs are, those of root among them."""
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"
