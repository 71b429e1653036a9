"""The host's workflow files say what the Makefile and the package say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path: Path) -> dict[Any, Any]:
    """A YAML file."""
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def steps(path: Path) -> list[dict[str, Any]]:
    """All steps of a workflow."""
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_makes_what_can_be_made_and_may_do_no_more_than_it_needs(path: Path) -> None:
    """Its targets are the Makefile's, it reads the repository alone unless a job says more, and it ends."""
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    made = [word for step in steps(path) for word in re.findall(r"make ([a-z ]+)", step.get("run", ""))]
    for job in read(path)["jobs"].values():
        assert job["timeout-minutes"]
        made += job.get("strategy", {}).get("matrix", {}).get("target", [])
    assert {name for names in made for name in names.partition(" ARGS")[0].split()} <= targets
    assert read(path)["permissions"] == {"contents": "read"}


def test_tests_run_on_every_python_that_is_promised() -> None:
    """From the oldest that installs it to the newest that it is classified for, and one more."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = read(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    classified = [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert tested[0] == project["requires-python"].removeprefix(">=")
    assert set(classified) <= set(tested)


def test_only_the_job_that_publishes_can_say_who_it_is() -> None:
    """No token is kept; the index trusts the workflow, in one environment."""
    jobs = read(ROOT / ".github/workflows/release.yml")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"
    assert "permissions" not in jobs["build"]
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.stem)
def test_a_template_asks_each_thing_once(path: Path) -> None:
    """It has a name, and fields with ids of their own."""
    template = read(path)
    ids = [field["id"] for field in template["body"] if field["type"] != "markdown"]
    assert template["name"]
    assert template["description"]
    assert len(set(ids)) == len(ids)
