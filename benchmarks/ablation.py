"""What each mechanism of the context engine contributes to cost and meaning: each is removed in turn.

Run it with ``python benchmarks/ablation.py [RUNS.jsonl.gz …]``; ``repertory replay`` says which recordings it reads.
Without any it makes its own runs: an agent reads the source of this repository and of the standard library, and
returns to lines that it has seen. ``--show 10`` prints instead how stretches and results of those appear in view.
Planner and projector are driven as the loop drives them, without summaries by a model and without retrieval.

The cost figure is a multiple of the append-only cost; the other figures are shares of what the next turn uses from
sources more than ten iterations old (``repertory.replay.meaning``).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from repertory.context import EMPTY, ContextPolicy, Planner, Projector, shown_once
from repertory.context.account import Account
from repertory.context.edits import Editor
from repertory.context.plan import CoverRange, Plan, RemoveResult, StubResult
from repertory.llm.estimate import Calibration, estimate_tokens
from repertory.llm.messages import Block, Text, ToolResult, ToolUse, text_of, tool_uses
from repertory.llm.model import ModelRequest
from repertory.llm.profiles import cost_of
from repertory.record import Entry
from repertory.replay import Meaning, RecordedRun, Turn, profile_named, read_recordings
from repertory.replay.billing import Biller, plain_requests
from repertory.replay.meaning import OLD, Meter
from repertory.replay.model import output_tokens, times_of
from repertory.replay.needs import needs_of
from repertory.shortening import ResultPolicy, lines, trail
from repertory.shortening.lines import choose_lines, looks_like_file
from repertory.shortening.shaping import shape_result
from repertory.shortening.trail import Trail

MEASURES = ("facts", "lines", "own_lines")
COLUMNS = ("", "cost", "worst run", "facts", "lines", "own lines", "facts left", "lines left", "own lines left", "peak")

# --- the mechanisms ---------------------------------------------------------------------------------------


def head_and_tail(new: Sequence[str], room: int, *_: object, **__: object) -> list[str]:
    """Choose the first and the last lines that there is room for."""
    if sum(len(line) + 1 for line in new) <= room:
        return list(new)
    kept: list[int] = []
    for at in (place for pair in zip(range(len(new)), reversed(range(len(new))), strict=True) for place in pair):
        room -= len(new[at]) + 1
        if room < 0 or at in kept:
            break
        kept.append(at)
    return [new[at] for at in sorted(kept)]


def no_lines(new: Sequence[str], room: int, *_: object, **__: object) -> list[str]:
    """Choose no line of a text that does not fit whole."""
    return list(new) if sum(len(line) + 1 for line in new) <= room else []


def repeating(self: Trail, lines: Sequence[str], room: int, *, result: str = "") -> list[str]:
    """Choose lines as if none were in view already."""
    return choose_lines(lines, room, self._vocabulary, outcome=bool(result) and not looks_like_file(result))


_BREAKPOINTS = Projector._breakpoints


def newest_edge_alone(projector: Projector, messages: Any, plan: Plan) -> Any:
    """Set breakpoints as if the edge had always been where it is."""
    return _BREAKPOINTS(projector, messages, msgspec.structs.replace(plan, edges=plan.edges[-1:]))


ALWAYS_ENOUGH = property(lambda _: 1e12, lambda *_: None)


class Variant(msgspec.Struct, frozen=True):
    """The engine with something removed: by the policy, or by replacing one of its values."""

    name: str
    policy: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    instead: tuple[tuple[Any, str, Any], ...] = ()


OF_OBJECTS = {"bank", "owed"}  # set by an object's own methods; all others are names in a module or a class
WHOLE = Variant("the engine as it is")
VARIANTS = (
    WHOLE,
    Variant("no folds: single results, where it is free", {"summaries": False}),
    Variant("nothing shown once", {"show_once": False}),
    Variant("files shown once like other results", {}, ((shown_once, "_FILE_TOKENS", 0),)),
    Variant("folds before they are owed", {}, ((Account, "owed", ALWAYS_ENOUGH),)),
    Variant("folds before they are earned", {}, ((Account, "bank", ALWAYS_ENOUGH),)),
    Variant("a tenth of long results", {}, ((trail, "SHARE", 0.1),)),
    Variant("a quarter of long results", {}, ((trail, "SHARE", 0.25),)),
    Variant("head and tail of long results", {}, ((trail, "choose_lines", head_and_tail),)),
    Variant("results by up to 9,600 characters", {}, ((trail, "_MAX_CHARS", 9_600),)),
    Variant("no lines around the chosen ones", {}, ((lines, "_nearest", lambda *_: ()),)),
    Variant("nothing of long results", {}, ((trail, "choose_lines", no_lines),)),
    Variant("how something ended counts no more", {}, ((lines, "_verdicts", lambda _: []),)),
    Variant("140 characters of the agent's words", {}, ((trail, "_TEXT_CHARS", 140),)),
    Variant("120 characters of a long argument", {}, ((trail, "argument_room", lambda _: 120),)),
    Variant("standing lines said again", {}, ((Trail, "_choose", repeating),)),
    Variant("nothing superseded", {}, ((Editor, "supersede", lambda *_: []),)),
    Variant("no comfort: only the window bounds the view", {"comfort_tokens": 0}),
    Variant("no breakpoint at the old edge", {}, ((Projector, "_breakpoints", newest_edge_alone),)),
)


@contextmanager
def taken_away(variant: Variant) -> Iterator[None]:
    """Replace values of the engine by those of a variant."""
    with ExitStack() as stack:
        for owner, name, value in variant.instead:
            own = vars(owner).get(name)
            if own is None and name not in OF_OBJECTS:
                raise AttributeError(f"{owner.__name__} has no {name}")
            stack.callback(delattr, owner, name) if own is None else stack.callback(setattr, owner, name, own)
            setattr(owner, name, value)
        yield


# --- playing a run ----------------------------------------------------------------------------------------


class Played(NamedTuple):
    """The figures of one run."""

    cost: float
    plain: float
    peak: int
    meaning: Meaning


def play(
    run: RecordedRun, *, model: str, variant: Variant, look: Callable[[Plan, ModelRequest], None] | None = None
) -> Played:
    """Take a run through planner and projector; ``look`` is called with each plan and its request."""
    profile, policy = profile_named(model), ContextPolicy(**variant.policy)
    system = (Text(run.system),) if run.system else ()
    with taken_away(variant):
        planner = Planner(policy=policy, profile=profile, head_tokens=estimate_tokens(system) + 200)
        projector = Projector(profile=profile, system=system)
        meter, biller, plain = Meter(run, needs_of(run)), Biller(profile), Biller(profile)
        entries: list[Entry] = []
        add = partial(_add, entries)
        add("user", "task", (Text(run.task),))
        plan, calibration, cost, peak = EMPTY, Calibration(), 0.0, 0
        frame: ModelRequest | None = None
        times = times_of(run)
        for iteration, turn in enumerate(run.turns, 1):
            now = times[iteration - 1]
            cold = iteration > 1 and now - times[iteration - 2] > profile.cache.ttl
            outcome = planner.next(entries, plan, iteration=iteration, calibration=calibration, cold=cold)
            plan, request = outcome.plan, projector.project(entries, outcome.plan)
            frame = frame or request
            usage, _ = biller.bill(request, at=now)
            cost += cost_of(profile, msgspec.structs.replace(usage, output_tokens=output_tokens(turn, profile)))
            calibration = calibration.observe(estimate=outcome.estimate, real=usage.prompt_tokens)
            peak = max(peak, usage.prompt_tokens)
            meter.see(iteration, request)
            if look is not None:
                look(plan, request)
            if iteration == len(run.turns):
                break
            add("assistant", "assistant", turn.content, iteration=iteration)
            for use in tool_uses(turn.content):
                result = turn.results[use.id]
                shaped = shape_result(
                    result.content, rules=policy.rules(use.name), content_id=f"c-{use.id}", tool=use.name
                )
                add(
                    "user",
                    "action-result",
                    (ToolResult(use.id, shaped.content, is_error=result.is_error),),
                    iteration=iteration,
                    tool=use.name,
                    tool_call_id=use.id,
                    content_id=shaped.content_id,
                    original_length=shaped.original_length,
                    spans=shaped.spans,
                )
            for said in turn.said:
                add("user", "user-input", (Text(said),), iteration=iteration)
    whole = 0.0
    assert frame is not None
    for turn, at, request in zip(run.turns, times, plain_requests(run, frame, reasoning=None), strict=True):
        usage, _ = plain.bill(request, at=at)
        whole += cost_of(profile, msgspec.structs.replace(usage, output_tokens=output_tokens(turn, profile)))
    return Played(cost, whole, peak, meter.found)


def _add(entries: list[Entry], role: Any, kind: Any, content: tuple[Block, ...], **fields: Any) -> None:
    tokens, at = estimate_tokens(content), len(entries)
    entries.append(Entry(role=role, kind=kind, content=content, position=at, created_at=0.0, tokens=tokens, **fields))


# --- runs of our own --------------------------------------------------------------------------------------

_DEFINED = re.compile(r"(?:class|def) ([A-Za-z_]\w{5,})")
_IMPORTED = re.compile(r"^\s*from ([\w.]+) import", re.M)


def reading_run(name: str, root: Path, *, iterations: int, seed: int) -> RecordedRun:
    """A run of an agent that reads code, looks up names that it has seen, changes lines, takes notes and runs tests.

    Six times out of ten it returns to a line from the older two thirds of what it has seen.
    """
    rng = random.Random(seed)
    files = {
        str(path.relative_to(root)): path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(root.rglob("*.py"))
        if path.stat().st_size < 60_000 and not {"test", "tests", "site-packages", "idlelib"} & {*path.parts}
    }
    queue = rng.sample(sorted(files), min(12, len(files)))
    seen: list[tuple[str, str, str]] = []  # a name, the line that defines it, the file
    turns: list[Turn] = []

    def step(text: str, tool: str, arguments: dict[str, Any], answer: str, *, failed: bool = False) -> None:
        call, number = f"c{len(turns) + 1}", len(turns) + 1
        content: list[Block] = [Text(text), ToolUse(call, tool, arguments)]
        said = ("Leave the tests alone.",) if number == 30 else ()
        turns.append(Turn(content=tuple(content), results={call: ToolResult(call, answer, is_error=failed)}, said=said))

    def known() -> tuple[str, str, str]:
        old = seen[: len(seen) * 2 // 3] if rng.random() < 0.6 else seen
        return rng.choice(old or seen)

    def hits(symbol: str) -> list[str]:
        return [
            f"{path}:{number}: {line.strip()}"
            for path, body in files.items()
            for number, line in enumerate(body.split("\n"), 1)
            if re.search(rf"\b{symbol}\b", line)
        ]

    def read(path: str) -> None:
        source = files[path].split("\n")[:400]
        numbered = "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(source, 1))
        step(f"I read {path}, for `{rng.choice(seen)[0]}`." if seen else path, "read_file", {"path": path}, numbered)
        seen.extend((found[1], line.strip(), path) for line in source if (found := _DEFINED.search(line)))
        modules = {module.replace(".", "/") + ".py" for module in _IMPORTED.findall(files[path])}
        queue.extend(sorted(other for other in files if any(other.endswith(module) for module in modules))[:2])

    listing = "\n".join(f"{path}  {len(text.encode()):,} bytes" for path, text in files.items())
    step("First I look at what there is.", "list_files", {"path": "."}, listing)
    while len(turns) < iterations:
        what = rng.random()
        if what < 0.36 or not seen:
            read(queue.pop(0) if queue else rng.choice(sorted(files)))
            continue
        symbol, line, path = known()
        if what < 0.62:
            answer = "\n".join(hits(symbol)[:120])
            step(f"{path} says `{line}`. Who else knows {symbol}?", "search", {"pattern": rf"\b{symbol}\b"}, answer)
        elif what < 0.74:
            change = {"path": path, "old": line, "new": f"# {symbol}: see {seen[-1][2]}\n{line}"}
            step(f"I say what `{symbol}` is for.", "edit_file", change, f"edited {path}: 1 replacement")
        elif what < 0.80:
            noted = "\n".join(f"- {where}: `{text}`" for _, text, where in rng.sample(seen, min(25, len(seen))))
            step("I write down what I know.", "write_file", {"path": "notes.md", "content": noted}, "wrote notes.md")
        elif what < 0.86:
            counts = [{"path": other, "uses": body.count(symbol)} for other, body in files.items() if symbol in body]
            step(f"How often is {symbol} used?", "count_uses", {"name": symbol}, json.dumps(counts))
        elif what < 0.90:
            read(path)
        else:
            tests = sorted(f"tests/test_{Path(other).stem}.py" for other in rng.sample(sorted(files), 25))
            failed = rng.random() < 0.5
            trouble = [f"FAILED {tests[7]}: AssertionError: {symbol} was called twice", f"    {line}"]
            told = [f"{test} ok" for test in tests] + (trouble if failed else [])
            summary = f"{25 - failed} passed, {int(failed)} failed in 2.{rng.randrange(10, 99)} s"
            arguments = {"files": tests[:3], "quiet": False}
            step("Does that still hold?", "run_tests", arguments, "\n".join([*told, summary]), failed=failed)
    turns.append(Turn(content=(Text("That is what I found."),), results={}))
    task = "Find out how the parts of this code base work together, and say above each unclear one what it is for."
    return RecordedRun(id=name, file="", task=task, turns=tuple(turns))


def wide_run(*, iterations: int, characters: int, seed: int) -> RecordedRun:
    """A run in which every result is a large table."""
    rng = random.Random(seed)
    turns: list[Turn] = []
    for number in range(iterations):
        rows = [
            f"berth_{rng.randrange(9999)} | ship-{rng.randrange(10**6)} | {rng.random():.4f}"
            for _ in range(characters // 35)
        ]
        call = f"c{number}"
        content = (Text(f"What does day {number} say?"), ToolUse(call, "read_log", {"day": number}))
        turns.append(Turn(content=content, results={call: ToolResult(call, "\n".join(rows))}))
    turns.append(Turn(content=(Text("No accident."),), results={}))
    return RecordedRun(id="large results", file="", task="Read the logs of the harbour.", turns=tuple(turns))


def own_runs() -> list[RecordedRun]:
    """The runs that are played if none are given."""
    here = Path(__file__).parent.parent / "src" / "repertory"
    library = Path(sysconfig.get_path("stdlib"))
    return [
        reading_run("this repository", here, iterations=120, seed=1),
        reading_run("asyncio", library / "asyncio", iterations=120, seed=2),
        wide_run(iterations=22, characters=200_000, seed=3),
    ]


def recorded(paths: Sequence[Path], *, least: int) -> list[RecordedRun]:
    """The runs in files that have at least ``least`` iterations."""
    found: list[RecordedRun] = []
    for path in paths:
        for run in read_recordings(path):
            if isinstance(run, RecordedRun):
                found += [run] if len(run.turns) >= least else []
            else:
                print(run, file=sys.stderr)
    return found


# --- saying it --------------------------------------------------------------------------------------------


def row(variant: Variant, played: Sequence[Played]) -> str:
    """A row of the table."""
    total = Meaning()
    for each in played:
        total.add(each.meaning)
    cost = sum(each.cost for each in played) / sum(each.plain for each in played)
    worst = max(each.cost / each.plain for each in played)
    shares = [
        *(total.share(name, ages=OLD) for name in MEASURES),
        *(total.share(name, ages=OLD, left=True) for name in MEASURES),
    ]
    told = " | ".join("–" if share is None else f"{share:.3f}" for share in shares)
    return f"| {variant.name} | {cost:.3f} | {worst:.2f} | {told} | {max(each.peak for each in played) // 1000}k |"


def show(run: RecordedRun, most: int) -> None:
    """Print stretches of trail, and stubs of every kind, as they appear in the view of a run."""
    expiring = ResultPolicy(expiration_mode="compact", expiration_turns=1)
    removing = {"edit_file": ResultPolicy(expiration_mode="remove", expiration_turns=2)}
    policies: dict[str, dict[str, Any]] = {
        "thrifty": {},
        "strict": {"rhythm": "strict"},
        "results expire": {"results": expiring, "tools": removing},
    }
    for name, policy in policies.items():
        covers: dict[tuple[int, int], CoverRange] = {}
        shown: dict[int, StubResult | RemoveResult] = {}

        def look(plan: Plan, _: ModelRequest, covers: Any = covers, shown: Any = shown) -> None:
            covers.update({(cover.first, cover.last): cover for cover in plan.covers if cover.content})
            shown.update({at: edit for at, edit in plan.shown.items() if isinstance(edit, StubResult | RemoveResult)})

        play(run, model="r=0.05", variant=Variant(name, policy), look=look)
        for cover in list(covers.values())[:most]:
            print(f"--- {run.id}, {name}: a stretch\n{text_of(cover.content)}\n")
        for edit in list(shown.values())[:most]:
            print(f"--- {run.id}, {name}: a result\n{edit.text}\n")


def main() -> int:
    """Play every variant and print the table, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, help="recordings; without any, runs made here")
    parser.add_argument("--model", default="r=0.05", help="as of `repertory replay`")
    parser.add_argument("--least", type=int, default=40, help="iterations that a run must have")
    parser.add_argument("--every", type=int, default=1, help="play only each so manieth run")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--show", type=int, default=0, help="print so many stretches and stubs of each run instead")
    options = parser.parse_args()
    runs = recorded(options.runs, least=options.least) if options.runs else own_runs()
    runs = sorted(runs, key=lambda run: -len(run.turns))[:: options.every]
    if options.show:
        for run in runs:
            show(run, options.show)
        return 0
    print(f"{len(runs)} runs, {sum(len(run.turns) for run in runs):,} iterations, {options.model}\n")
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    with ProcessPoolExecutor(options.jobs) as pool:
        for at, variant in enumerate(VARIANTS):
            print(row(variant, list(pool.map(partial(_one, options.model, at), runs))), flush=True)
    return 0


def _one(model: str, at: int, run: RecordedRun) -> Played:
    return play(run, model=model, variant=VARIANTS[at])


if __name__ == "__main__":
    sys.exit(main())
