"""Scenarios for tests of the frame; functions of a module, so that worker processes can import them."""

from __future__ import annotations

import os
import signal

from repertory.record.postgres_sql import connect
from repertory.torture import Case, Outcome
from repertory.torture.servers import make_database


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


def die_on_a_server(case: Case) -> Outcome:
    """End the worker while its database is there."""
    with connect(make_database(case.server, case.database)):
        return die(case)


def die(case: Case) -> Outcome:
    """End the worker."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still here")
