"""The figures of played runs, by hand, and their charts."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from replay_stories import long_run

from patience import PATIENCE
from repertory.errors import ConfigurationError
from repertory.llm.model import Usage
from repertory.replay import Meaning, Played, figures, report, write_chart
from repertory.replay.chart import bars, check_target, svg
from repertory.replay.reporting import GROUPS

COUNTS = {
    ("union", "1", False, True): 3,
    ("union", "over_10", True, False): 1,
    ("paths", "1", False, True): 2,
    ("lines", "over_10", False, True): 1,
    ("lines", "over_10", True, True): 1,
    ("lines", "over_10", True, False): 2,
    ("lines", "1", True, True): 4,
}


def made(turns: int = 2, **fields: Any) -> Played:
    """A played run with round figures."""
    run = long_run(turns, run_id=f"run-{turns}")
    meaning = Meaning(
        counts=Counter(COUNTS), blind=1, result_tokens=80, whole_tokens=60, standing_chars=200, bare_chars=30
    )
    return Played(
        **{
            "run": run,
            "meaning": meaning,
            "rereads": [0.0, 1.5],
            "view": [100, 150],
            "plain": [100, 300],
            "costs": [1.0, 2.0],
            "plain_costs": [1.0, 5.0],
            "usage": Usage(input_tokens=250),
            "plain_usage": Usage(input_tokens=400),
            "build_seconds": [0.001, 0.003],
            "decisions": Counter(pays=2),
            **fields,
        }
    )


def test_the_figures_of_one_run_are_what_came_of_it() -> None:
    """Ratios to the plain loop, shares of what was needed, milliseconds."""
    found = figures([made(cleared_tokens=150, summaries=1)])
    expected = {
        "cost": 3.0,
        "cost_plain": 6.0,
        "cost_ratio": 0.5,
        "worst_run_ratio": 0.5,
        "worst_prefix_ratio": 1.0,
        "dearer_runs": 0,
        "tokens_seen": 250,
        "tokens_plain": 400,
        "tokens_ratio": 0.625,
        "peak_context": 150,
        "peak_plain": 300,
        "identifiers": 4,
        "retrievals_needed": 1,
        "bare_names": 0.15,
        "reread_cost_ratio": 0.25,
        "lines": {"needed": 8, "all": 0.75, "over_10": 0.5, "left": 0.714286, "left_over_10": 0.333333},
        "facts": {"needed": 0, "all": None, "over_10": None, "left": None, "left_over_10": None},
        "whole_on_arrival": 0.75,
        "decisions": {"pays": 2},
        "cleared_tokens": 150,
        "summaries": 1,
        "build_ms_p50": 1.0,
        "build_ms_p99": 3.0,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["recall"]["union"] == 0.75
    assert found["recall"]["paths"] == 1.0
    assert found["recall"]["hex"] is None
    assert found["recall_over_10"]["union"] == 0.0
    assert found["recall_by_age"] == {"1": 1.0, "2-3": None, "4-10": None, "over_10": 0.0}


def test_the_total_adds_up_what_runs_cost_before_it_compares() -> None:
    """A dear run is not hidden by cheap ones: the worst run and the worst moment are named as well."""
    dear = made(3, costs=[9.0, 1.0], plain_costs=[6.0, 2.0], invalid=2, error="stopped")
    both = figures([made(), dear])
    assert both["cost_ratio"] == round(13 / 14, 6)
    assert both["worst_run_ratio"] == 1.25
    assert both["worst_prefix_ratio"] == 1.5
    assert (both["dearer_runs"], both["invalid_requests"], both["failed_runs"]) == (1, 2, 1)
    assert both["decisions"] == {"pays": 4}


def test_a_run_that_never_began_has_no_ratio() -> None:
    """Nothing is divided by nothing."""
    found = figures(
        [made(costs=[], plain_costs=[], view=[], plain=[], usage=Usage(), plain_usage=Usage(), build_seconds=[])]
    )
    assert [found[name] for name in ("cost_ratio", "worst_run_ratio", "worst_prefix_ratio", "build_ms_p50")] == [
        None
    ] * 4


def test_a_model_without_prices_has_no_ratio() -> None:
    """As one on a server of one's own: its cost is 0 both ways. A run beside it that has prices counts."""
    free = made(3, costs=[0.0, 0.0], plain_costs=[0.0, 0.0])
    ratios = ("cost_ratio", "worst_run_ratio", "worst_prefix_ratio")
    assert [figures([free])[name] for name in ratios] == [None] * 3
    assert [figures([free, made()])[name] for name in ratios] == [0.5, 0.5, 1.0]


def test_long_runs_are_counted_apart() -> None:
    """From 40 and from 90 iterations on; all groups have the same fields, and so has every run."""
    runs = [{"m": made(turns)} for turns in (39, 40, 89, 90)]
    found = report(runs, policy="thrifty", problems=["a problem"], seconds=1.23456)
    assert [run["id"] for run in found["runs"]] == ["run-39", "run-40", "run-89", "run-90"]
    assert [(found[group]["runs"], found[group]["iterations"]) for group in GROUPS] == [(4, 258), (3, 219), (1, 90)]
    assert len({frozenset(found[group]["models"]["m"]) for group in GROUPS}) == 1
    assert set(found["runs"][0]["models"]["m"]) - set(found["total"]["models"]["m"]) == {"error", "context", "plain"}
    assert (found["policy"], found["models"], found["problems"], found["seconds"]) == (
        "thrifty",
        ["m"],
        ["a problem"],
        1.235,
    )
    assert found["runs"][0]["recorded_tokens"] is None
    empty = report([], policy="plain")
    assert (empty["runs"], empty["models"], empty["total"]["models"]) == ([], [], {})


# --- charts -----------------------------------------------------------------------------------------------


def test_the_chart_has_a_line_for_each_series() -> None:
    """Valid XML, one point for each iteration, and higher is more."""
    text = svg(title="a <b> & c", plain=[10, 1000, 60_000], views={"r=0.1": [10, 500, 900], "r=0.05": [10, 500, 90]})
    root = ElementTree.fromstring(text)
    names = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    lines = [element.attrib["points"].split() for element in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert {"a <b> & c", "plain loop", "r=0.1", "r=0.05", "60k", "iteration"} <= set(names)
    assert [len(points) for points in lines] == [3, 3, 3]
    heights = [float(point.split(",")[1]) for point in lines[0]]
    assert heights == sorted(heights, reverse=True)
    assert all(math.isfinite(height) for height in heights)
    ElementTree.fromstring(svg(title="", plain=[], views={}))  # nothing to draw is no error


def test_the_chart_is_written_where_the_name_says(tmp_path: Path) -> None:
    """SVG needs nothing; anything but it and PNG is refused."""
    strange = made(run=msgspec.structs.replace(long_run(2), id="a\x1bb"))
    write_chart(tmp_path / "a.svg", {"m": strange})
    assert "Context of a b, tokens" in "".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())
    with pytest.raises(ConfigurationError, match=r"expected a chart's file to end in \.svg or \.png"):
        write_chart(tmp_path / "a.gif", {"m": strange})


def test_png_is_drawn(tmp_path: Path) -> None:
    """With what the extra installs, twice as large as the SVG says; control: another chart is another picture."""
    path = tmp_path / "a.png"
    write_chart(path, {"m": made()})
    first = path.read_bytes()
    assert first.startswith(b"\x89PNG")
    assert struct.unpack(">II", first[16:24]) == (2 * 860, 2 * 420)
    write_chart(path, {"m": made(view=[100, 300])})
    assert path.read_bytes() != first


def test_png_says_what_it_needs() -> None:
    """Before anything is played, by the name of the extra; in a process that has the standard library only."""
    program = (
        "import sys; from pathlib import Path; import repertory.replay.chart as chart\n"
        "sys.path = [path for path in sys.path if 'packages' not in path]\n"
        "try: chart.check_target(Path('a.png'))\n"
        "except chart.ConfigurationError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "'a.png' needs resvg: pip install \"repertory[plot]\", or write an .svg\n"


def test_a_chart_that_cannot_be_written_is_refused_before_it_is_drawn(tmp_path: Path) -> None:
    """The folder is missing, or there is one of that name; control: a file that is there is written over."""
    (tmp_path / "folder.svg").mkdir()
    for path in (tmp_path / "none" / "a.svg", tmp_path / "folder.svg"):
        with pytest.raises(ConfigurationError, match="cannot be written"):
            check_target(path)
    (tmp_path / "old.svg").write_text("old", encoding="utf-8")
    check_target(tmp_path / "old.svg")


def test_a_run_of_one_turn_can_be_seen() -> None:
    """A line of one point has no length: dots stand for it."""
    root = ElementTree.fromstring(svg(title="t", plain=[5], views={"m": [3]}))
    dots = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(dots) == 2
    assert float(dots[0].attrib["cy"]) < float(dots[1].attrib["cy"])
    assert "circle" not in svg(title="t", plain=[5, 6], views={"m": [3, 4]})


def test_bars_stand_as_high_as_the_tokens() -> None:
    """Full for the view, grey for what a plain loop adds; eighths where a cell is not full."""
    assert bars([0, 8, 16], [0, 8, 8], width=10, height=2) == ["  ░", " ██"]
    assert bars([16, 16], [1, 16], width=1, height=1) == ["█"]
    assert bars([16], [8], width=5, height=1) == ["▄"]
    assert bars([], [], width=5) == []
