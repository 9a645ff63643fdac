"""The trial's page: its sentences follow the verdicts, its numbers lead to their rows, and browsers show it."""

from __future__ import annotations

import csv
import json
import re
import sys
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import page
import page_arms
import page_others
import page_points
import pandas as pd
import pytest
from helpers.browser import CHROMIUM, browser
from helpers.made_tables import DENSITY, DEPTHS, write_tables
from helpers.pages import Reader
from markupsafe import Markup
from page_beside import compared
from page_claims import CLAIMS, effect
from page_tasks import by_task

SCALES = ("quick", "mid", "paper")
STUDIES = page.HERE.parent / "studies"
HELD = dict.fromkeys(CLAIMS, 0.9) | {"C7": 0.3, "C9": 0.1}


def heading(text: str, name: str) -> str:
    """The sentence above a claim or discovery."""
    found = re.search(rf'<h2 id="{name}">(.*?)</h2>|id="{name}"><h3>{name}\. (.*?)</h3>', text)
    assert found
    return unescape(found[1] or found[2])


def html(folder: Path) -> str:
    """The page of the tables in a folder."""
    return page.written(folder)[folder / "index.html"]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of three scales that agree in all claims but C4. Read only."""
    folder = tmp_path_factory.mktemp("reference")
    for name, sign in zip(SCALES, (-1, 1, 1), strict=True):
        write_tables(folder / name, HELD | {"C4": sign * 0.5}, tokens=2 if name == "quick" else 4)
    (folder / "figures").mkdir()
    for path, text in page.written(folder).items():
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("sign", "judgement", "count"), [(1, "supported", "9 of the paper's 9 claims hold"), (-1, "not supported", "0 of")]
)
def test_a_finding_that_turns_over_turns_its_sentence(sign: int, judgement: str, count: str, tmp_path: Path) -> None:
    write_tables(tmp_path / "mid", {name: sign * x for name, x in HELD.items()}, tokens=4)
    text = html(tmp_path)
    for name, claim in CLAIMS.items():
        assert heading(text, name) == (claim.holds if sign > 0 else claim.opposite)
        assert claim.holds != claim.opposite != claim.question
    assert text.count(f"mid: {judgement}") == len(CLAIMS)
    assert text.count("quick: pending") == text.count("paper: pending") == len(CLAIMS)
    assert count in unescape(text)


def test_what_is_open_is_asked(tmp_path: Path) -> None:
    """A claim without verdict is a question; where scales disagree, the sentence names its scale."""
    write_tables(tmp_path / "quick", {"C1": 0.7}, tokens=2)
    text = html(tmp_path)
    # Zeros stay zeros, however many.
    assert heading(text, "C8") == f"Undecided: {CLAIMS['C8'].question}"
    asked = f"Undecided: {CLAIMS['C8'].question} 200 seeds like these would not decide."
    assert asked in unescape(re.sub("<.*?>", "", text))
    assert "At quick 1 of the paper's 9 claims hold, 0 come out the other way, 8 stay undecided" in unescape(text)
    write_tables(tmp_path / "mid", {"C1": -0.7}, tokens=4)
    assert heading(html(tmp_path), "C1") == f"At mid: {CLAIMS['C1'].opposite}"


def test_runs_that_were_trained_again_keep_or_turn_verdicts(tmp_path: Path) -> None:
    """The badges are of the first; the sentence counts, and each claim has a row of its own."""
    write_tables(tmp_path / "quick", HELD, tokens=2)
    rows = pd.read_csv(tmp_path / "quick/verdicts.csv")
    assert "trained again" not in html(tmp_path)
    turned = rows["claim"] == "C8"
    rows.assign(verdict=rows["verdict"].mask(turned, "undecided")).to_csv(tmp_path / "quick/again.csv", index=False)
    text = html(tmp_path)
    told = " ".join(re.sub("<.*?>", "", unescape(text)).split())
    same = len(rows) - 1
    assert f"At quick, trained again from nothing with other rounding, {same} of {same + 1} verdicts stayed" in told
    assert f"{same + 1} verdicts stayed and C8 turned. The badges keep the first." in told
    assert text.count("quick, trained again<") == len(CLAIMS)
    line = rows.index[turned][0] + 2
    assert f'<a class="n" href="quick/again.csv#L{line}" title="quick/again.csv, row C8">undecided</a>' in text
    assert text.count("quick: supported") == len(CLAIMS)


def test_every_number_leads_to_its_row(three: Path) -> None:
    text = (three / "index.html").read_text(encoding="utf-8")
    reader = Reader(text)
    numbers = [link for link in reader.links if link.get("class") == "n"]
    assert len(numbers) > 13 * 3 * 3
    for link in numbers:
        told = re.fullmatch(r"(\S+), (?:row|the (\d+) rows) (.*)", str(link["title"]))
        target, _, place = str(link["href"]).partition("#L")
        assert told
        assert target == told[1]
        with (three / target).open(encoding="utf-8") as file:
            rows = list(csv.reader(file))
        words = set(told[3].split())
        assert words <= set(rows[int(place) - 1]), link
        # Of a number of several rows it is the first.
        assert not any(words <= set(row) for row in rows[: int(place) - 1]), link
        assert sum(words <= set(row) for row in rows) >= int(told[2] or 1)
    others = {str(link["href"]) for link in reader.links if link.get("class") != "n"}
    for link in others:
        if link.startswith("#"):
            assert reader.ids.count(link[1:]) == 1, link
        elif link.startswith("../../"):
            # From the committed page, to a heading of a file of the repository.
            target, _, place = link.removeprefix("../../").partition("#")
            whole = (page.HERE.parent / target).read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.*)$", whole, re.MULTILINE)
            assert not place or place in [name.lower().replace(" ", "-") for name in headings], link
        else:
            assert link.startswith("https://arxiv.org/") or (three / link).exists(), link
    # Runs that never grokked are later than all: the median of ten is that of the fifth and the sixth.
    settings = {tuple(row["setting"][:2]): row["cells"] for row in page.Results(three / "mid").settings()}
    assert settings["tables", "l2"]["grokked"].striptags() == "∞"
    assert settings["tables", "l2"]["there"].striptags() == "0 of 10"
    assert settings["tables", "nuclear"]["grokked"].striptags() == "1,004"
    # In the words of the quoted sentence, from the made depths alone.
    quote = unescape(re.sub(r"<[^>]+>|\s+", " ", text.partition("<blockquote>")[2].partition("</blockquote>")[0]))
    operands = DEPTHS["E[operands],W"]
    for value in (DEPTHS["E,W"] / operands, DEPTHS["W,V"] / operands, 1 - 1 / 1.001):
        assert f" {value:.3g} " in quote, quote
    assert "it is the deeper coupling" in quote


def test_every_arm_of_the_experiment_is_counted(three: Path) -> None:
    """Runs that never grokked are later than all; of the arms of d, the least and the largest are quoted."""
    arms = page.Results(three / "mid").without_coupling()["arms"]
    shown = {words: {name: cell.striptags() for name, cell in row.items()} for words, row in arms["rows"].items()}
    assert list(shown) == [
        "a: E and W, L2", "b: tables, L2", "c: tables, nuclear norm", "d: E and W, d = 8", "d: E and W, d = 16",
        "e: op and = removed", "f: E frozen after memorising", "g: balanced start",
    ][:-1]  # fmt: skip
    # Clopper and Pearson's interval of 3 of 10, as in their tables.
    assert shown["d: E and W, d = 8"] == {
        "grokked": "3 of 10", "share": "7% to 65%", "memorised": "10 of 10", "at": "200", "step": "∞", "delay": "∞",
        "rank": "10.4", "nuclear": "418", "depth": "–", "index": "–", "control": "–",
    }  # fmt: skip
    assert shown["a: E and W, L2"]["delay"] == "804"
    assert (arms["named"]["least"]["d"], arms["named"]["most"]["d"]) == ("8", "16")
    assert [words.partition(" ")[0] for words, *_ in arms["figures"]] == ["Share", "Share", "Effective", "Nuclear"]
    assert arms["figures"][-1][2].striptags() == "p = 59, 4 tokens, d = 16, h = 64, seeds 100 to 109; ranks.csv."
    # The third of five seeds, 102, less a tenth of the last step.
    assert "Last: a: E and W, L2: 82" in arms["figures"][-2][1]
    assert "Last: a: E and W, L2: 608" in arms["figures"][-1][1]
    # Of the five seeds analysed the third; of an index between 3 and 9 nothing.
    for words, inside in {"a: E and W, L2": ("0.0204", "not determined"), "b: tables, L2": ("0", "0")}.items():
        assert (shown[words]["depth"], shown[words]["index"]) == inside
    assert "The blocks of the arms were analysed at mid on 5 seeds, at paper on 5 seeds." in " ".join(
        unescape((three / "index.html").read_text(encoding="utf-8")).split()
    )


def test_arms_that_were_analysed_on_fewer_seeds_count(three: Path) -> None:
    rows = page.Results(three / "mid").tables["curvature"]
    assert page_arms.analysed(rows) == "5 seeds"
    assert page_arms.analysed(rows[(rows["case"] != "l2") | (rows["seed"] < 102)]) == "2 to 5 seeds"
    assert page_arms.analysed(rows[rows["seed"] < 101]) == "1 seed"
    assert page_arms.analysed(rows[rows["study"] != "arms"]) == ""


def test_what_folding_the_constant_tokens_does_is_said(three: Path) -> None:
    """Made runs grok at half the step; with two tokens they are compared to those of `constants` with four."""
    for name in SCALES:
        found = page.Results(three / name).inputs()
        assert (found["folded"]["grokked"].striptags(), found["folded"]["sooner"]) == ("× 0.5 [0.5, 0.5]", "sooner")
        assert (found["removed"]["grokked"].striptags(), found["removed"]["sooner"]) == (
            "× 1 [1, 1]", "neither clearly sooner nor later",
        )  # fmt: skip
    words = unescape(re.sub(r"\s+", " ", (three / "index.html").read_text(encoding="utf-8")))
    words = re.sub(r"<[^>]+>", "", words)
    first, *others = (f"{name}{', in' if name == SCALES[0] else ' in'} × 1 [1, 1]" for name in SCALES)
    each = [f"{first} of the steps", *(f"at {other}" for other in others)]
    assert f"It memorises, at {'; '.join(f'{one} and groks sooner' for one in each)}." in words


def test_what_changes_with_size_is_said(three: Path) -> None:
    """The quantity that moves a measure most comes first, in the title as in the text: shares by their difference."""
    text = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", (three / "index.html").read_text(encoding="utf-8"))))
    base, two = DEPTHS["E,W"] / DEPTHS["W,V"], 1.2
    most = "changes most with"
    # E,W is 0.5, 4 and 1.5 times as deep where d, h and p are larger; of two tokens every row is one of an operand.
    for words in (
        f"At quick, the depth of E,W over W,V {most} the hidden width h; the gauge's share of E,W's index {most} the "
        f"input form; the constant of C7 {most} the modulus p",
        f"The depth of E,W over W,V {most} the hidden width h: h {base:.3g} at 64, {4 * base:.3g} at 256; "
        f"d {base / 2:.3g} at 64, {base:.3g} at 16; p {base:.3g} at 59, {1.5 * base:.3g} at 97; tokens {two} at 2, "
        f"{base:.3g} at 4.",
        f"rows over W,V {most} the input form: tokens 0.25 at 4, 1.2 at 2; d 0.25 at 16, 0.25 at 16 (seeds overlap)",
        f"The gauge's share of E,W's index {most} the input form: tokens 25% at 4, 100% at 2; "
        "h 25% at 64, 90% at 256; d 25% at 16, 50% at 64; p 5% at 97, 25% at 59.",
        f"The constant of C7 {most} the modulus p: p 0.522 at 97, 1.04 at 59; ",
    ):
        assert words in text


def test_points_are_counted_where_a_search_ended_at_one(three: Path) -> None:
    found = page.Results(three / "quick").points()
    shown = {
        row["activation"]: {name: cell.striptags() for name, cell in row["cells"].items()} for row in found["rows"]
    }
    ends = {"grad_norm": "1e−11", "median": "1e−11"}
    assert shown == {
        "GELU": {"critical": "10 of 10", **ends, "E,W": "10 of 10", "W,V": "10 of 10"},
        "ReLU": {"critical": "0 of 10", **ends, "E,W": "–", "W,V": "–"},
    }
    assert found["reached"].striptags() == "10 of 20 searches from the end of training reached a critical point"
    # Clopper and Pearson's interval of 10 of 10 begins at 0.025^(1/10).
    assert {name: verdict.striptags() for name, verdict in found["judged"].items()} == {
        "GELU": "mostly saddles of E,W (10 of 10 searches): E,W has a negative eigenvalue at 10 of 10, of all such "
        "points at 69% to 100% (95 %).",
        "ReLU": "too few for a verdict: 0 (0 of 10 searches). Smallest gradient norms: 1e−11, 1e−11, 1e−11.",
    }
    assert page.Results(three / "mid").points() is None
    # That more seeds were searched until there were enough is said of each activation that it happened to.
    told = " ".join(unescape((three / "index.html").read_text(encoding="utf-8")).split())
    assert "too few, ten more with tanh after the twenty had given seven." in told
    assert "Of these networks had grokked: GELU 10 of 10, ReLU 10 of 10." in re.sub("<.*?>", "", told)


def test_seven_points_are_too_few(three: Path) -> None:
    """The eighth decides; a point whose index is not certified is none."""
    tables = page.Results(three / "quick").tables
    link = page.Results(three / "quick").link
    for count in (7, 8):
        few = tables["points"].copy()
        few.loc[few.index[few["activation"] == "gelu"][count:], "status"] = "unfinished"
        said = page_points.judged(few, tables["curvature"], link)["GELU"]
        assert said.startswith("too few for a verdict" if count < 8 else "mostly saddles of E,W")
        unsure = tables["curvature"].assign(index_level="bracketed")
        assert page_points.judged(few, unsure, link)["GELU"].startswith("too few")


def test_the_index_off_the_gauge_is_said(three: Path) -> None:
    found = page.Results(three / "quick").gauge()
    assert {name: text.striptags() for name, text in found.items()} == {"index": "12", "index_gauge_free": "0"}
    assert page.Results(three / "mid").gauge() is None, "of no bracketed index"


def test_other_results_stand_beside_ours(three: Path) -> None:
    results = page.Results(three / "mid")
    found = page_others.spikes([results])
    assert {where: text.striptags() for where, text in found["counts"].items()} == {
        "mid, float32": "7 of 10", "mid, float64": "0 of 10",
    }  # fmt: skip
    assert found["any"]
    told = " ".join(unescape((three / "index.html").read_text(encoding="utf-8")).split())
    every = {json.loads(path.read_text())["train"]["metrics_every"] for path in STUDIES.rglob("spikes.json")}
    assert [f"recorded every {steps} steps, came after grokking" in told for steps in every] == [True]
    by_rate = {one.pop("words"): {name: cell.striptags() for name, cell in one.items()}
               for one in page_others.division([results])}  # fmt: skip
    assert by_rate["MLP at mid, Adam"] == {"p": "59", "grokked": "1,004", "memorised": "200", "runs": "10"}
    assert by_rate["MLP at mid, Adam-LR (c = 10)"]["grokked"] == "502"
    assert page_others.gromov(three) is None


def test_settings_are_compared_over_paired_seeds(three: Path) -> None:
    results = page.Results(three / "mid")
    runs, curvature = results.tables["runs"], results.tables["curvature"]
    assert {words: text.striptags() for words, text in compared(runs, results.link).items()} == {
        # The other setting groks after 1,000 to 1,009 steps.
        "E frozen after memorising": f"× ≥ {6000 / 1004.5:.3g} (10 of 10 never by 6,000)",
        "c = 4 over c = 1": "× 0.5 [0.5, 0.5]",
    }
    tasks = by_task(runs, curvature, results.link)
    assert list(tasks) == ["a + b", "a / b"]
    depth = DEPTHS["E,W"] / DEPTHS["W,V"]
    assert Markup(tasks["a + b"]["C4"]).striptags() == f"× {depth:.3g} [{depth:.3g}, {depth:.3g}]"
    # Depths of addition are not those of division, of which none were measured.
    assert {claim: Markup(cell).striptags() for claim, cell in tasks["a / b"].items()} == {
        "C1": "–", "C4": "–", "C7": "× 1.04 [1.01, 1.08]", "C8": "× 2 [2, 2]",
    }  # fmt: skip


def test_the_page_is_short_whole_and_described(three: Path) -> None:
    text = (three / "index.html").read_text(encoding="utf-8")
    reader = Reader(text)
    assert 300 < len(reader.words) <= 2500
    assert len(text.encode()) < 5e6
    pictures = [attributes for tag, attributes in reader.found if tag == "svg"]
    assert len(pictures) == 3 + 3 + 3 * 3 + 2 + 2 + 13 + 1 + 6 + 1
    assert all(picture["role"] == "img" and len(str(picture["aria-label"])) > 10 for picture in pictures)
    # Nothing is loaded.
    assert not [tag for tag, attributes in reader.found if "src" in attributes or tag == "link"]
    assert "@import" not in text
    assert "url(" not in text
    assert text == html(three)


def test_what_github_shows(three: Path) -> None:
    """The same sentences and effects, and figures that are files of their own."""
    text = (three / "report.md").read_text(encoding="utf-8")
    assert "\\n" not in text, "a line break is one, not an escape"
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert table[0] == ["", "finding", *SCALES]
    shown = (three / "index.html").read_text(encoding="utf-8")
    findings = table[2 : 2 + len(CLAIMS)]
    assert {row[0]: unescape(row[1]) for row in findings} == {name: heading(shown, name) for name in CLAIMS}
    for name, _, *found in findings:
        for scale, cell in zip(SCALES, found, strict=True):
            verdict = page.Results(three / scale).verdict(name)
            assert re.sub("<[^>]+>", "", cell) == f"{verdict['verdict']}, {effect(name, verdict)}"
    pictures = re.findall(r"!\[[^]]+\]\((.*?)\)", text)
    assert len(pictures) == 3 * 3 + 2
    for picture in pictures:
        root = ElementTree.parse(three / picture).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(list(root.iter())) > 10


def test_without_a_scale_it_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["page", "--out", str(tmp_path)])
    assert page.main() == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: no scale has verdicts in {tmp_path}",
        f"hint: python analyses/primary.py {tmp_path}/quick",
    ]


def test_the_film_shows_densities(three: Path) -> None:
    """Those of densities.csv, at the steps and of the blocks that are there."""
    films = json.loads(re.findall(r'id="films">(.*?)</script>', (three / "index.html").read_text(encoding="utf-8"))[0])
    for film in films.values():
        found = {(one["step"], name): b["density"] for one in film["steps"] for name, b in one["blocks"].items()}
        y, error, width = ([DENSITY[name]] * 3 for name in ("density", "standard_error", "width"))
        whole = {"width": width[0], "x": [-0.1, 0, 0.1], "y": y, "error": error}
        assert {of: density for of, density in found.items() if density} == {(10, "E,W"): whole}
        assert len(found) == 9


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_browsers_show_it(three: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """At two widths, light and dark: nothing overflows, nothing is logged, contents stay, and the film moves."""
    path, backgrounds = three / "index.html", set()
    with browser(tmp_path_factory.mktemp("profile")) as shown:
        for width in (1300, 420):
            for dark in (False, True):
                shown.open(path, width, dark=dark)
                assert shown.evaluate("document.documentElement.scrollWidth") <= width
                wide = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.wide, svg') && "
                assert shown.evaluate(f"{wide} e.getBoundingClientRect().right > {width + 1}).length") == 0
                backgrounds.add((dark, shown.evaluate("getComputedStyle(document.body).backgroundColor")))
        assert len(backgrounds) == 2

        shown.evaluate("document.querySelector('nav a[href=\"#glossary\"]').click()")
        shown.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert shown.evaluate("document.getElementById('glossary').open")
        assert shown.evaluate("scrollY > 1000 && document.querySelector('nav').getBoundingClientRect().top === 0")

        shown.evaluate("document.querySelector('a[href=\"#by-rate\"]').click()")
        shown.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert shown.evaluate("document.getElementById('beside').open")
        assert 0 <= shown.evaluate("document.getElementById('by-rate').getBoundingClientRect().top") < 300

        def film() -> tuple[str, str, int]:
            state = "[now.textContent, run.textContent, blocks.rows.length]"
            named = ", ".join(f"{name} = document.getElementById('{name}')" for name in ("now", "run", "blocks"))
            return tuple(shown.evaluate(f"(() => {{ const {named}; return {state}; }})()"))

        assert film() == ("step 10", "film/base-s100.h5: p = 97, 4 tokens, d = 16, h = 64, seed 100", 3)
        move = "(e => { e.value = %s; e.dispatchEvent(new Event('%s')); })(document.getElementById('%s'))"
        shown.evaluate(move % (2, "input", "step"))
        assert film()[::2] == ("step 1,000", 3)
        shown.evaluate(move % ("'quick'", "change", "chosen"))
        assert film()[1:] == ("film/base-s100.h5: p = 59, 4 tokens, d = 16, h = 64, seed 100", 3)
        cells = "[...document.querySelectorAll('#blocks td:not(:first-child)')].map(td => [td.parentElement.cells[0]"
        numbers = shown.evaluate(f"{cells}.textContent, td.querySelector('a.n').getAttribute('href')])")
        assert len(numbers) == 3 * 4
        for block, link in numbers:
            name, _, line = link.partition("#L")
            with (three / name).open(encoding="utf-8") as file:
                row = list(csv.reader(file))[int(line) - 1]
            assert {"film", block, "10"} <= set(row), link
        assert shown.complaints == []
