"""What captions say of the facts that they name."""

from __future__ import annotations

import re
from pathlib import Path

from landscape.report.facts import FACTS, explained

ROOT = Path(__file__).parents[2]


def test_every_fact_of_a_caption_is_told_as_it_is_proved() -> None:
    """Those that the modules of reports name; each starts as its section of docs/theory.md does."""
    modules = "".join(path.read_text() for path in (ROOT / "landscape/report").rglob("*.py"))
    assert set(re.findall(r"\bF\d{1,2}b?\b", modules)) == FACTS.keys()
    theory = (ROOT / "docs/theory.md").read_text()
    for name, statement in FACTS.items():
        assert f"### {name}\n\n**{statement.partition(':')[0]}.**" in theory


def test_a_fact_is_told_under_the_pointer() -> None:
    """Other text is escaped, and longer names are left alone."""
    assert explained("<b> (F0), F0x and xF0") == (f'&lt;b&gt; (<abbr title="{FACTS["F0"]}">F0</abbr>), F0x and xF0')
