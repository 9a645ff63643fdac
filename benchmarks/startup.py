"""Start-up time of `landscape`: `--help` and `info`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping

from benchmarks.harness import Line, Numbers, Part, alternate, main
from benchmarks.peers import trained
from landscape import preset

ROUNDS = 7
TARGETS = {"landscape --help": 1.0, "landscape info": 2.0}


def start() -> Numbers:
    """Seconds of new processes."""
    with trained(preset("quick"), [0]) as reader:
        commands = {"landscape --help": ["--help"], "landscape info": ["info", str(reader.path)]}

    def run(arguments: list[str]) -> None:
        subprocess.run([sys.executable, "-m", "landscape", *arguments], check=True, capture_output=True)

    return {"seconds": alternate({name: lambda a=a: run(a) for name, a in commands.items()}, ROUNDS)}


def parts() -> list[Part]:
    return [Part("processes", start)]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """Row 11."""
    for part, numbers in found.items():
        for command, target in TARGETS.items():
            seconds = numbers["seconds"][command]["median"]
            yield Line("11", f"`{command}`", f"< {target:g} s", f"{seconds:.2f} s", seconds < target, part)


if __name__ == "__main__":
    sys.exit(main("startup", parts()))
