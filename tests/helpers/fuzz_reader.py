"""Feed broken and hostile files to the readers; test_damage.py does it briefly, this command at length:

    cd tests && python -m helpers.fuzz_reader --seconds 600

Files are read in a child process of limited memory and time, so that a crash or a hang of the HDF5 library is seen and
attributed to its file. Whatever the readers serve must be what the whole file holds; the rest must be named.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import math
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray
from helpers.hessians import HessianReader
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

import landscape
from landscape.errors import LandscapeError
from landscape.files import schema
from landscape.files.hdf5 import attributes_crc32, file_schema
from landscape.files.runs import RunReader

MEMORY, SECONDS = 4 << 30, 10
Served = dict[str, Any]


def serve(path: Path, original: Served) -> Served:
    """Everything that the readers serve of a file, in a form to compare; "error: ..." for what they refuse.

    original: what the whole file serves; its steps are asked for too.
    """
    try:
        reads = _of_run if file_schema(path) == schema.RUN else _of_hessian
        return {name: _asked(item) for name, item in reads(path, original)}
    except LandscapeError as error:
        return {"damage": f"error: {error}"}


def judge(served: Served, original: Served) -> str:
    """ "harmless" if all is served as it was, "named: ..." if what is not is named; else what is wrong."""
    damage = served["damage"] if served["damage"] != original["damage"] else ""
    for name in original.keys() - {"damage", "slots"}:
        value, got = original[name], served.get(name)
        if isinstance(got, str) and got.startswith("error: "):
            damage = damage or got
        elif name == "resume" and got != value and got in original["slots"]:
            damage = damage or "the older resume slot is served"
        elif got != value and not (damage and _is_less(name, got, value)):
            return f"wrong {name}"
    return f"named: {damage}" if damage else "harmless"


def _is_less(name: str, got: Any, value: Any) -> bool:
    """Whether less is served, and nothing else: the view has axes and names, and no number."""
    return got is None or name == "view" or isinstance(got, frozenset) and got < value


def _of_run(path: Path, original: Served) -> Iterator[tuple[str, Callable[[], Any]]]:
    with RunReader(path) as reader:
        yield "damage", lambda: reader.damage
        yield "attrs", lambda: (reader.attrs, reader.config)
        yield "steps", lambda: frozenset(reader.steps)
        for step in sorted(original.get("steps") or reader.steps):
            yield f"checkpoint {step}", lambda step=step: reader.checkpoint(step)
            yield f"moments {step}", lambda step=step: reader.second_moments(step)
            yield f"tokens {step}", lambda step=step: reader.tokens_at(step)
            yield f"metrics at {step}", lambda step=step: reader.metrics_at(step)
        yield "metrics", lambda: _rows(reader.metrics())
        yield "tokens", lambda: _rows(reader.tokens())
        yield "data", lambda: reader.data()
        yield "resume", lambda: reader.resume_state()
        yield "view", lambda: _view(landscape.open(path).to_xarray())
        yield "slots", lambda: frozenset(_frozen(reader.table("resume").row(i)) for i in (0, 1))


def _of_hessian(path: Path, original: Served) -> Iterator[tuple[str, Callable[[], Any]]]:
    reader = HessianReader(path)
    # A damaged one is refused as a whole.
    yield "damage", lambda: ""
    yield "attrs", lambda: (reader.attrs, reader.config, reader.blocks, reader.pairs)
    yield "steps", lambda: frozenset(reader.steps)
    yield "view", lambda: _view(landscape.open(path).to_xarray())
    for step in reader.steps:
        yield f"step {step}", lambda step=step: reader.rows(step)


def _view(data: xarray.Dataset) -> dict[str, Any]:
    with data:
        return {str(name): variable.dims for name, variable in data.variables.items()}


def _rows(columns: dict[str, Any]) -> frozenset[Any]:
    return frozenset(tuple(_frozen(value) for value in row) for row in zip(*columns.values(), strict=True))


def _asked(item: Callable[[], Any]) -> Any:
    try:
        return _frozen(item())
    except LandscapeError as error:
        return f"error: {error}"


def _frozen(value: Any) -> Any:
    """Numbers to the bit, so that NaN equals itself."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return tuple((name, _frozen(v)) for name, v in sorted(value.items()))
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


class Reader:
    """A child process that serves one file after another and compares each with the whole one."""

    def __init__(self, original: Path) -> None:
        self._command = [sys.executable, "-m", "helpers.fuzz_reader", "--serve", str(original.resolve())]
        self._child: subprocess.Popen[str] | None = None

    def verdict(self, path: Path) -> str:
        """What `judge` says of a file, or "raised ...", or "crash N" with the signal; 14 is a hang."""
        if self._child is None:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._child = subprocess.Popen(self._command, text=True, cwd=Path(__file__).parents[1], **pipes)
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write(f"{path.resolve()}\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if answer:
            return str(json.loads(answer))
        code, self._child = self._child.wait(), None
        return f"crash {-code}"

    def close(self) -> int:
        """End the child; returns the bytes of memory that it took at most, beyond those of the whole file."""
        if self._child is None:
            return 0
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.close()
        peak = self._child.stdout.readline()
        self._child.stdout.close()
        self._child.wait()
        return int(peak)


def _serve_forever(path: Path) -> None:
    """The child: one path a line comes in, one verdict a line goes out."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    original = serve(path, {})
    # The libraries alone take 0.3 GB, or 0.6 with torch for GPUs.
    before = _peak()
    for line in sys.stdin:
        signal.alarm(SECONDS)
        try:
            verdict = judge(serve(Path(line.rstrip("\n")), original), original)
        except Exception as error:
            verdict = f"raised {type(error).__name__}: {error}"
        signal.alarm(0)
        print(json.dumps(verdict), flush=True)
    print(_peak() - before)


def _peak() -> int:
    # That of `getrusage` counts the parent's memory at the fork, too.
    (peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(peak) * 1024


Mutation = tuple[str, *tuple[Any, ...]]
VALUES = st.one_of(
    st.text(max_size=20),
    st.binary(max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.lists(st.integers(-9, 9), max_size=4),
    st.sampled_from([h5py.Empty("f8"), 1j, np.zeros(2, "i4,f8"), np.void(b"abc"), "x" * 2_000_000, "[" * 100_000]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([10**400, 10**18]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
LAYOUTS: list[dict[str, Any]] = [
    {}, {"chunks": True}, {"chunks": True, "compression": "gzip", "shuffle": True},
    {"chunks": True, "compression": "lzf"}, {"chunks": True, "fletcher32": True}, {"chunks": True, "scaleoffset": 3},
    {"external": [("/etc/hostname", 0, 1 << 40)]}, {"maxshape": 1, "chunks": True},
]  # fmt: skip
TYPES = ["f2", "f4", "f8", ">f8", "i1", "i8", "u8", "c16", "?", "S3", "V5", "O", "i4,f8", "M8[us]"]


def mutations(path: Path) -> st.SearchStrategy[list[Mutation]]:
    """Ways to spoil a file: links, datasets, types, shapes, storage, attributes, the config, and a cut."""
    names: list[str] = ["/"]
    with h5py.File(path) as file:
        file.visit(names.append)
        attributes = [*file.attrs, "fields", "crc32", "new"]
        keys = list(json.loads(str(file.attrs["config"])))
    name, attribute = st.sampled_from(names), st.sampled_from(attributes)
    shape = st.lists(st.sampled_from([0, 1, 2, 4, 7, 8, 17, 60, 10**6, 2**40]), max_size=4)
    one = st.one_of(
        st.tuples(st.just("delete"), name),
        st.tuples(st.just("rename"), name, name),
        st.tuples(st.just("link"), name, st.sampled_from(["soft", "external", "hard"]), name),
        st.tuples(st.just("dataset"), name, shape, st.sampled_from(TYPES), st.sampled_from(LAYOUTS)),
        st.tuples(st.just("value"), name, st.floats(0, 1), st.integers(-3, 2**62) | st.floats()),
        st.tuples(st.just("attribute"), st.sampled_from([*names[:8], *["/"] * 8]), attribute, VALUES),
        st.tuples(st.just("config"), st.sampled_from(["config", "parent_config"]), st.sampled_from(keys), JSON),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
    )
    return st.lists(one, min_size=1, max_size=3)


def spoil(path: Path, steps: list[Mutation]) -> None:
    """Apply mutations in place; those that HDF5 itself refuses are left out. Attributes get a valid checksum."""
    with np.errstate(all="ignore"), h5py.File(path, "r+") as file:
        for kind, *args in steps:
            with contextlib.suppress(Exception):
                _change(file, kind, args)
        with contextlib.suppress(Exception):
            seal(file)
    for kind, *args in steps:
        if kind == "truncate":
            raw = path.read_bytes()
            path.write_bytes(raw[: int(args[0] * len(raw))])


def seal(file: h5py.File) -> None:
    """Give changed attributes a valid checksum, so that it is not what refuses them."""
    file.attrs["attrs_crc32"] = attributes_crc32({n: v for n, v in file.attrs.items() if not n.startswith("_")})


def _change(file: h5py.File, kind: str, args: list[Any]) -> None:
    name = args[0]
    match kind:
        case "delete":
            del file[name]
        case "rename":
            file.move(name, args[1])
        case "link":
            links = {"soft": h5py.SoftLink(args[2]), "external": h5py.ExternalLink("/etc/passwd", args[2])}
            target = links.get(args[1]) or file[args[2]]
            del file[name]
            file[name] = target
        case "dataset":
            shape, dtype, layout = args[1:]
            if "maxshape" in layout:
                layout = {**layout, "maxshape": (None,) * len(shape)}
            del file[name]
            file.create_dataset(name, shape, h5py.string_dtype() if dtype == "O" else dtype, **layout)
        case "value":
            data = file[name]
            if data.nbytes > 1 << 28:
                raise ValueError("to write there would make the file as large")
            data[np.unravel_index(int(args[1] * (data.size - 1)), data.shape)] = args[2]
        case "attribute":
            file[name].attrs[args[1]] = args[2]
        case "config":
            file.attrs[name] = json.dumps({**json.loads(file.attrs[name]), args[1]: args[2]})


def is_fair(verdict: str, steps: list[Mutation]) -> bool:
    """Whether a verdict is what a reader may do; attributes with a checksum of their own are the file's word."""
    kinds = {kind for kind, *_ in steps}
    is_given = verdict == "wrong attrs" and bool(kinds & {"attribute", "config"})
    return is_given or verdict == "harmless" or verdict.startswith("named: ")


class Campaign:
    """Spoils copies of one file at random and keeps count of what the readers make of them."""

    def __init__(self, path: Path, victim: Path) -> None:
        self.path, self.victim = path, victim
        self.whole, self.reader = path.read_bytes(), Reader(path)
        self.counts: collections.Counter[str] = collections.Counter()
        self.bad: list[str] = []

    def run(self, examples: int, number: int, ends: float = math.inf) -> None:
        """Try so many examples, or fewer if the time is over."""

        @seed(number)
        @settings(max_examples=examples, database=None, deadline=None, phases=[Phase.generate])
        @given(mutations(self.path))
        def attack(steps: list[Mutation]) -> None:
            if time.monotonic() < ends:
                self.victim.write_bytes(self.whole)
                spoil(self.victim, steps)
                verdict = self.reader.verdict(self.victim)
                self.counts[verdict.split()[0].rstrip(":")] += 1
                if not is_fair(verdict, steps):
                    self.bad.append(f"{self.path.name}: {verdict}: {steps}"[:2000])

        attack()


def main() -> None:
    """Spoil files at random for a while; print the counts, and each file that was served wrong or did harm."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="other seeds spoil otherwise")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return _serve_forever(args.serve)
    from conftest import TINY

    from landscape.config import HessianConfig
    from landscape.measure.hessian import hessian as analyse
    from landscape.training.loop import train

    ends = time.monotonic() + args.seconds
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run.h5"
        train(TINY, run, quiet=True)
        analyse(run, HessianConfig(device="cpu"), quiet=True)
        files = [run, run.with_name("run.hessian.h5")]
        campaigns = [Campaign(path, Path(name) / "victim.h5") for path in files]
        for number in itertools.count(10_000 * args.seed):
            for campaign in campaigns:
                campaign.run(100, number, ends)
            if time.monotonic() >= ends:
                break
        peak = max(campaign.reader.close() for campaign in campaigns)
    counts = sum((c.counts for c in campaigns), collections.Counter[str]())
    bad = [line for campaign in campaigns for line in campaign.bad]
    print(f"{counts.total()} examples: {dict(counts)}; {len(bad)} served wrong or harmful; peak {peak >> 20} MiB more")
    print("\n".join(bad))
    sys.exit(bool(bad))


if __name__ == "__main__":
    # As pytest does: conftest lies there.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
