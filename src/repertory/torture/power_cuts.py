"""Power cuts: unsynced data may be there, gone or torn, and nothing that was acknowledged may be lost."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import anyio
import msgspec

from repertory._error_texts import leaves_of
from repertory.errors import RepertoryError
from repertory.llm.messages import Text
from repertory.record import Draft, Durability, Journal, Ledger, open_journal
from repertory.supervisor import open_supervisor
from repertory.torture import shim
from repertory.torture.children import start
from repertory.torture.disk import MODES, Disk, Image
from repertory.torture.frame import Case, Outcome
from repertory.torture.judging import (
    Place,
    append_problems,
    effect_problems,
    file_problems,
    read_appends,
    record_problems,
    run_problems,
)
from repertory.torture.team import RUN_ID, TASK, effects_team, expected_answer
from repertory.torture.trace import Event, Faulted, Marked, Synced, read_trace
from repertory.torture.workloads import RUNS, Life, hold_open, live, text_of_entry

_LIFE_TIMEOUT = 120.0  # seconds; a life takes a tenth of one, on a busy machine many times as long
_STEPS = 3
_AFTER = "after"  # the name of an append after a cut
_RESUMED = 0.12  # share of a team's images that are resumed to the end, which costs ten times as much as reading them


class Account(msgspec.Struct):
    """What the workload was acknowledged, or did outside of the process, up to a point of the trace.

    Attributes:
        partial: Whether there were lives whose journal promised less, so that their acknowledgements do not count.
    """

    acknowledged: dict[str, Place] = {}
    effects: list[str] = []
    spawned: bool = False
    answer: str | None = None
    partial: bool = False

    def take(self, text: str) -> None:
        """Note a message of the workload in the trace."""
        kind, _, rest = text.partition(" ")
        match kind:
            case "ack":
                run_id, position, name = rest.split(" ")
                self.acknowledged.setdefault(name, (run_id, int(position)))
            case "effect":
                self.effects.append(rest)
            case "spawned":
                self.spawned = True
            case "answer":
                self.answer = rest


class Plan(msgspec.Struct, frozen=True):
    """One scenario: the lives of a journal, and whether the power fails between them.

    Attributes:
        cuts: For each life but the last, whether a power cut follows; otherwise only the process ends.
        images: How many cuts are tried.
        folder: Whether the folder of the journal exists, durably, beforehand.
        gullible: Whether to hold a journal to what it acknowledged though its durability promised less; for controls.
    """

    lives: tuple[Life, ...]
    cuts: tuple[bool, ...]
    images: int
    folder: bool = False
    gullible: bool = False


def plan_for(seed: int, *, images: int) -> Plan:
    """Draw a scenario."""
    chance = random.Random(seed)
    kind = "team" if chance.random() < 0.3 else "writers"
    weaker = chance.random()
    many = chance.random() < 0.06 and kind == "writers"  # enough for checkpoints in the middle of the work
    count = chance.choice((1, 2, 2, 3, 3, 4))
    lives = tuple(
        Life(
            kind=kind,
            life=number,
            seed=chance.randrange(2**32),
            durability=_durability(chance, weaker, last=number == count - 1),
            rules=_faults(chance) if chance.random() < 0.85 else [],
            ending=chance.choice(("close", "exit")),
            batches=60 if many else chance.randint(2, 9),
            size=60_000 if many else chance.choice((50, 500, 9000)),
            reader=chance.random() < 0.15,
        )
        for number in range(count)
    )
    # After a life that synced nothing, a cut leaves no valid journal, and none was promised.
    cuts = tuple(chance.random() < 0.35 and life.durability != "memory" for life in lives[:-1])
    return Plan(lives, cuts, images // 3 if many else images, chance.random() < 0.5)


def _durability(chance: random.Random, weaker: float, *, last: bool) -> Durability:
    """Draw a durability: mostly ``power``; in some scenarios less, in some less at first."""
    if weaker < 0.06:
        return "process"
    if weaker < 0.26 and not last:
        return chance.choice(("process", "memory", "power"))
    return "power"


def _faults(chance: random.Random) -> list[shim.Rule]:
    """Draw a fault, early or late; sometimes two."""
    nth = chance.choice((chance.randint(1, 6), chance.randint(1, 25), chance.randint(1, 60)))
    suffix = chance.choice(("", "", "-wal", "-wal", "-wal", ".db", "-journal", "data"))
    broken = chance.choice((errno.EIO, errno.EIO, errno.ENOSPC))
    for_good = chance.choice((nth, nth, nth + 1, shim.FOR_EVER))
    match chance.randrange(8):
        case 0 | 1 | 2:
            rule = shim.Rule(on="sync", first=nth, last=for_good, action="fail", suffix=suffix)
        case 3:
            rule = shim.Rule(on="write", first=nth * 4, last=for_good * 4, action="fail", suffix=suffix, error=broken)
        case 4:
            rule = shim.Rule(on="write", first=nth * 4, last=for_good * 4, action="partly", error=errno.ENOSPC)
        case 5:
            rule = shim.Rule(on=chance.choice(("truncate", "name")), first=nth, last=for_good, action="fail")
        case _:
            action: shim.Action = "die before" if chance.random() < 0.5 else "die after"
            rule = shim.Rule(on=chance.choice(("any", "sync", "name")), first=nth, last=nth, action=action)
    return [rule] if chance.random() < 0.8 else [rule, *_faults(chance)]


def run_case(case: Case) -> Outcome:
    """Play one scenario, and check what power cuts in it would have left."""
    return play(case, plan_for(case.seed, images=110))


def believe(case: Case, *, kind: str, durability: Durability, rules: Sequence[shim.Rule] = ()) -> Outcome:
    """Negative control: play one life, of whose journal more is believed than is kept."""
    life = Life(kind=kind, life=0, seed=case.seed, durability=durability, rules=[*rules])
    return play(case, Plan((life,), (), 60, folder=True, gullible=True))


def play(case: Case, plan: Plan) -> Outcome:
    """Run the lives of a scenario, and try cuts in each of them."""
    chance = random.Random(f"cuts of {case.seed}")
    root = case.folder / "root"
    root.mkdir()
    disk, account, outcome = Disk(), Account(), Outcome()
    if plan.folder:
        (root / "data").mkdir()
        disk.cut(Image({}, ("data",)))
    seen: set[object] = set()
    faults = 0
    sound = True  # whether the disk holds a valid journal: not while nothing is synced
    for life, cut_follows in zip(plan.lives, (*plan.cuts, False), strict=True):
        counts = life.durability == "power" or plan.gullible
        account.partial = account.partial or not counts
        sound = sound and (life.durability != "memory" or plan.gullible)
        events = _live(case, root, life, outcome)
        faults += any(isinstance(event, Faulted) for event in events)
        share = plan.images // len(plan.lives)
        points = _cut_points(events, share, chance)
        for at, event in enumerate([*events, Marked("end")]):
            for _ in range(points.get(at, 0)):
                image = disk.image(chance, chance.choice(MODES))
                key = (hash(tuple(image.files.items())), len(account.acknowledged), len(account.effects))
                if key not in seen and sound:
                    seen.add(key)
                    resumed = life.kind == "team" and chance.random() < _RESUMED
                    outcome.count("images")
                    outcome.count("resumed", resumed)
                    found = _judge(case, image, account, life.kind, resumed=resumed)
                    if found:
                        others = f", and {len(found) - 1} more" if len(found) > 1 else ""
                        outcome.failures.append(
                            f"life {life.life}, cut at event {at} of {len(events)}: {found[0]}{others}"
                        )
            disk.apply(event)
            if isinstance(event, Marked):
                sound = sound or (event.text == "opened" and life.durability != "memory")
                if counts:
                    account.take(event.text)
        disk.start_process()
        if cut_follows and sound:
            image = disk.image(chance, chance.choice(MODES))
            disk.cut(image)
            shutil.rmtree(root)
            root.mkdir()
            image.restore(root)
    outcome.count("fault scenarios", faults > 0)
    return outcome


def _live(case: Case, root: Path, life: Life, outcome: Outcome) -> list[Event]:
    trace = case.folder / f"trace-{life.life}"
    if case.traces is not None:
        return read_trace(case.traces / trace.name)
    outcome.evidence.append(trace)
    with ExitStack() as stack:
        if life.reader:
            other = stack.enter_context(start(hold_open, database=str(root / "data" / "journal.db")))
            other.read(_LIFE_TIMEOUT, until=b"OPEN")
        child = stack.enter_context(start(live, folder=str(root), trace=str(trace), life=life))
        if not child.read(_LIFE_TIMEOUT):
            outcome.failures.append(f"life {life.life} did not end within {_LIFE_TIMEOUT:.0f} s, after {life.rules}")
            return read_trace(trace)
        status = child.wait()
    events = read_trace(trace)
    faulted = [event for event in events if isinstance(event, Faulted)]
    killed = status == -9 and bool(faulted)
    if not killed and (status != 0 or ("FAILED" in child.output and not faulted)):
        last = child.output.strip().splitlines()
        outcome.failures.append(
            f"life {life.life} ended with {status} after {life.rules}: {last[-1] if last else 'no word'}"
        )
    return events


def _cut_points(events: list[Event], count: int, chance: random.Random) -> dict[int, int]:
    """Where to cut, and how often: anywhere, but more often during opening and right after acknowledgements."""
    points: dict[int, int] = {len(events): 2}
    telling = [at + 1 for at, event in enumerate(events) if isinstance(event, Synced | Marked | Faulted)]
    opened = next((at for at, event in enumerate(events) if isinstance(event, Marked)), len(events))
    for _ in range(count - 2):
        where = chance.random()
        if where < 0.4 and telling:
            at = chance.choice(telling)
        else:
            at = chance.randint(0, opened if where < 0.6 else len(events))
        points[at] = points.get(at, 0) + 1
    return points


# --- what a cut left ----------------------------------------------------------------------------------------


def _judge(case: Case, image: Image, account: Account, kind: str, *, resumed: bool) -> list[str]:
    folder = case.folder / "image"
    folder.mkdir()
    try:
        image.restore(folder)
        database = folder / "data" / "journal.db"
        look = _look_at_writers if kind == "writers" else _resume_team if resumed else look_at_team
        return anyio.run(look, database, account, backend="trio")
    except (RepertoryError, BaseExceptionGroup) as error:
        return [f"{type(leaf).__name__}: {leaf}" for leaf in leaves_of(error)]
    finally:
        shutil.rmtree(folder)


async def _look_at_writers(database: Path, account: Account) -> list[str]:
    shown: set[tuple[Place, str]] = set()
    async with open_journal(database) as journal:
        for run_id in RUNS:
            ledger = await Ledger.open(journal, run_id)
            await ledger.append(Draft(role="user", kind="user-input", content=(Text(_AFTER),)))
            shown |= {((run_id, entry.position), text_of_entry(entry)) for entry in ledger.snapshot()}
    if damage := file_problems(database) or record_problems(database):
        return damage
    rows = read_appends(database)
    found = append_problems([row for row in rows if row[1] != _AFTER], account.acknowledged)
    if shown != {(place, name) for place, name, _ in rows}:
        found.append("the file holds other entries than the ledgers showed")
    return found


async def look_at_team(database: Path, account: Account) -> list[str]:
    """Where what a cut left of a team's journal contradicts the account."""
    async with open_journal(database) as journal:
        found = await _read_team(journal, account)
    return found + run_problems(database, ended=False)


async def _read_team(journal: Journal, account: Account) -> list[str]:
    found: list[str] = []
    runs = {row.started.run_id: row for row in await journal.read_runs()}
    root = runs.get(RUN_ID)
    if account.spawned and root is None:
        found.append("spawn returned, and there is no run")
    if account.answer is not None and (root is None or (root.state, root.result) != ("done", account.answer)):
        found.append(f"the answer was given, and the run is {root.state if root else 'gone'}")
    intents: set[tuple[str, str]] = set()
    for run_id in runs:
        await Ledger.open(journal, run_id)  # refuses gaps
        intents |= {(run_id, row.intended.call_id) for row in await journal.read_tool_calls(run_id)}
    for line in account.effects:
        effect, run_id, call_id, _ = line.split(" ")
        if effect in ("unsafe", "idempotent") and (run_id, call_id) not in intents:
            found.append(f"{effect} call {call_id} of {run_id} ran, and its intent is not on record")
    return found


async def _resume_team(database: Path, account: Account) -> list[str]:
    effects = list(account.effects)
    agent = effects_team(lambda effect, what: effects.append(f"{effect} {what}"), steps=_STEPS, pause=0.0)
    async with open_supervisor(database) as supervisor:
        exists = any(row.started.run_id == RUN_ID for row in await supervisor.runs())
        if account.spawned and not exists:
            return ["spawn returned, and there is no run to resume"]
        begin = supervisor.resume(RUN_ID, agent=agent) if exists else supervisor.spawn(agent, TASK, run_id=RUN_ID)
        answer = await (await begin).wait_result()
    found = [] if answer == expected_answer(_STEPS) else [f"resumed to {answer!r}, not {expected_answer(_STEPS)!r}"]
    found += run_problems(database)
    return found if found or account.partial else effect_problems(database, effects)
