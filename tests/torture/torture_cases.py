"""Scenarios for tests of the frame; functions of a module, so that worker processes can import them."""

from __future__ import annotations

import os
import signal

from repertory.torture import Case, Outcome


def count_seeds(case: Case) -> Outcome:
    """Succeed, and say what was drawn."""
    return Outcome(counts={"cases": 1, "seeds": case.seed})


def fail_when_odd(case: Case) -> Outcome:
    """Fail for every other seed, leaving evidence."""
    evidence = case.folder / "evidence"
    evidence.write_text(str(case.seed))
    return Outcome(failures=["it is odd"] if case.seed % 2 else [], evidence=[evidence])


def fail(case: Case) -> Outcome:
    """Fail."""
    return Outcome(failures=["as it should"])


def crash(case: Case) -> Outcome:
    """Raise what nobody expects."""
    raise KeyError("lost")


def die(case: Case) -> Outcome:
    """End the worker."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still here")
