"""Looking into a question: find the files, read around the best hits, note what fits, answer with sources."""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec

from repertory.llm.messages import Block, Text, ToolUse
from repertory.llm.offline.compose import answer, findings_in
from repertory.llm.offline.passages import Passage, best, names_in, passages
from repertory.llm.offline.places import (
    WINDOW,
    any_pattern,
    definition_pattern,
    files_in,
    overlaps,
    windows,
)
from repertory.llm.offline.toolbox import Toolbox
from repertory.llm.offline.view import Call, Hit, Progress, View, hits_in, numbered_lines
from repertory.llm.offline.words import Keyword, keywords, related, sentences

PART_OF = "This is part of a larger question:"
FINDING = "finding"  # the tag of every stored finding
_ID = re.compile(r'"id"\s*:\s*"([^"]+)"|\b((?:item|mem|note)-[0-9a-z]{8,}(?:-[0-9a-z]+)?)\b')
_CONTENT_ID = re.compile(r'content_id="([^"]+)"')
_SEEN = re.compile(r".+:\d+-\d+")
_QUEUED = re.compile(r"(?P<place>.+:\d+)@(?P<score>\d+(\.\d+)?)")
_URL = re.compile(r"https?://[^\s<>\"')\]]+")
PHASES = ("list", "search", "read", "gather", "recall", "answer")
_FOLLOW_UPS = 4  # searches for names that were come across


def next_turn(view: View, toolbox: Toolbox, steps: int) -> list[Block] | None:
    """The next turn of a researcher; None where the tools do not serve.

    Args:
        view: What is in view.
        toolbox: What can be called.
        steps: How many turns the search may take, the answer not counted.
    """
    wanted = wanted_in(view.task)
    if not wanted:
        return None
    return _Turn(view, toolbox, wanted, steps).take()


def wanted_in(task: str) -> tuple[Keyword, ...]:
    """What a task asks for; other words for it and the larger question that it is part of count, but less."""
    own, _, larger = task.partition(PART_OF)
    main = keywords(own)
    known = {keyword.stem for keyword in main}
    context = [
        msgspec.structs.replace(keyword, weight=round(keyword.weight * 0.25, 3))
        for keyword in keywords(larger)
        if keyword.stem not in known
    ]
    return (*main, *related(main), *context)


def tag_of(task: str) -> str:
    """The tag under which the findings of one task are stored."""
    return f"task_{blake2b(task.encode(), digest_size=4).hexdigest()}"


def items_in(listing: str, *, limit: int) -> list[str]:
    """The ids of stored items that a listing names, at most ``limit``, spread evenly over their sources.

    By source and not by age or id: agents that work side by side store in any order, and the same work should
    come to the same answer.
    """
    found: dict[str, str] = {}
    for row in listing.splitlines():
        match = _ID.search(row)
        if match:
            found.setdefault(match[1] or match[2], row[match.end() :].partition("from ")[2])
    ids = sorted(found, key=lambda item: (found[item], item))
    return ids if len(ids) <= limit else [ids[index * len(ids) // limit] for index in range(limit)]


class _Turn:
    """One turn: what came back is digested, what to do next is decided, and both are written down."""

    def __init__(self, view: View, toolbox: Toolbox, wanted: tuple[Keyword, ...], steps: int) -> None:
        self.view = view
        self.tools = toolbox
        self.wanted = wanted
        self.main = [keyword for keyword in wanted if keyword.weight >= 1] or list(wanted)
        self.steps = steps
        before = view.progress
        if before is None or before.phase not in PHASES:  # a lead whose team failed begins here from the start
            before = Progress(phase="list")
        self.step = before.step + 1
        self.before = before
        self.phase = before.phase
        self.focus = before.focus
        self.searched = list(before.searched)
        # Somebody else's text may look like a note; what does not fit is left out.
        self.viewed = [seen for seen in before.viewed if _SEEN.fullmatch(seen)]
        entries = [match for entry in before.queue if (match := _QUEUED.fullmatch(entry))]
        self.queue = {match["place"]: float(match["score"]) for match in entries}
        self.terms = list(before.terms)
        self.findings = before.findings
        self.calls: list[ToolUse] = []
        self.said: list[str] = []

    def take(self) -> list[Block]:
        """Digest, decide, and write the turn."""
        fresh = self._digest()
        if self.phase in ("list", "search", "read") and self.step > self.steps - 3:
            self.phase = "gather"
        for phase, act in (("list", self._list), ("search", self._search), ("read", self._read)):
            if self.phase == phase:
                act()
                if self.calls:
                    break
                # Nothing to do in this phase: on to the next at once, in the same turn.
                self.phase = {"list": "search", "search": "read", "read": "gather"}[phase]
        if self.phase == "gather" and not self.calls:
            self._gather()
        if self.phase == "recall" and not self.calls:
            self._recall()
        self._store(fresh)
        if not self.calls:
            return [Text(self._answer(fresh))]
        found = [f"Found: {passage.cited}" for passage in fresh]
        note = self._progress().note(self.steps)
        return [Text("\n".join([*found, *self.said, note])), *self.calls]

    # --- what came back ---------------------------------------------------------------------------------------

    def _digest(self) -> list[Passage]:
        hits: list[Hit] = []
        seen: list[Passage] = []
        for call in self.view.last:
            if call.failed or not call.result:
                continue
            if self.tools.list is not None and call.name == self.tools.list.name:
                for path, score in files_in(call.result, self.wanted).items():
                    self._enqueue(f"{path}:0", 2 * score)
            elif self.tools.search is not None and call.name == self.tools.search.name:
                hits.extend(hits_in(call.result))
            elif self.tools.view is not None and call.name == self.tools.view.name:
                seen.extend(passages(_path_of(call), numbered_lines(call.result)))
        for place, score in windows(hits, self.wanted).items():
            self.queue.pop(f"{place.rpartition(':')[0]}:0", None)  # its inside is known now
            self._enqueue(place, score)
        if self.tools.view is None:
            seen.extend(Passage(hit.path, hit.line, hit.text.strip(), "prose") for hit in hits)
        fresh = best(seen, self.wanted, limit=3)
        self.findings += len(fresh)
        known = {*self.terms, *self.searched}
        self.terms.extend(name for name in names_in(fresh, self.wanted)[:2] if name not in known)
        return fresh

    def _enqueue(self, place: str, score: float) -> None:
        if score > 0 and not overlaps(place, self.viewed):
            self.queue[place] = max(self.queue.get(place, 0.0), round(score, 2))

    # --- what to do next --------------------------------------------------------------------------------------

    def _list(self) -> None:
        """Look for files and folders that are called like what is asked for."""
        tool = self.tools.list
        if tool is None or "pattern" not in tool.properties:
            return
        words = [keyword.stem for keyword in self.main[:5]]
        # What begins with the word at the top, and what has it anywhere: a long list of the latter is cut.
        patterns = [f"{word}*/**" for word in words] + [f"**/*{word}*/**" for word in words[:4]]
        self.calls = [tool.list(pattern=pattern, limit=60) for pattern in patterns]
        self.said.append(f"I look for files called like {', '.join(words)}.")
        self.phase = "search"

    def _search(self) -> None:
        """Look for definitions that are called like it, and into the files that are."""
        tool = self.tools.search
        if tool is None:
            self._fetch()
            return
        words = [keyword.stem for keyword in self.main[:6]]
        self.focus = self._folder()
        if tool.is_regex:
            files = [place for place in self._ranked() if place.endswith(":0")][:3]
            if self.focus or len(files) < 3:
                # Where files are called like it, a search through everything is not worth its time.
                self._find(definition_pattern(words), path=self.focus or None)
            for place in files:
                self._look_into(place)
        else:
            for word in [keyword.word for keyword in self.main[:3]]:
                self._find(word, path=self.focus or None)
        self.searched.extend(words)
        self.said.append(f"I search for {', '.join(words)}{f' in {self.focus}' if self.focus else ''}.")
        self.phase = "read"

    def _read(self) -> None:
        """Read around the best place; now and then, look up a name that was come across."""
        tool = self.tools.search
        if tool is not None and self.terms and self.step % 3 == 0 and self._follow_ups() < _FOLLOW_UPS:
            names, self.terms = self.terms[:2], self.terms[2:]
            pattern = rf"\b(class|def|func|fn|function)\s+({'|'.join(names)})\b" if tool.is_regex else names[0]
            # Without a folder to stay in, a search through everything would not be worth its time.
            self._find(pattern, path=self.focus or self._last_path(), exact=True)
            self.searched.extend(f"name:{name}" for name in names)
            self.said.append(f"I look up {' and '.join(names)}.")
        if tool is not None:
            unknown = [place for place in self._ranked()[:2] if place.endswith(":0")]
            for place in unknown[:1]:
                self._look_into(place)
                self.said.append(f"I search in {place[:-2]}.")
        best_place = next((place for place in self._ranked() if not place.endswith(":0")), None)
        if best_place is None and not self.calls:
            self._widen()
        if best_place is None or self.tools.view is None:
            return
        path, _, line = best_place.rpartition(":")
        first, last = int(line), int(line) + WINDOW - 1
        del self.queue[best_place]
        self.viewed.append(f"{path}:{first}-{last}")
        self.calls.append(self.tools.view.view(path, first, last))
        self.said.append(f"I read {path} from line {first}.")

    def _widen(self) -> None:
        """Search the whole folder for one word after another, once the best places have been read."""
        tool = self.tools.search
        word = next((k.stem for k in self.main if f"all:{k.stem}" not in self.searched), None)
        if tool is None or word is None or not self.focus:
            return
        self._find(word, path=self.focus)
        self.searched.append(f"all:{word}")
        self.said.append(f"I search all of {self.focus} for {word}.")

    def _gather(self) -> None:
        """Ask memory for the findings, so that they are fresh in view."""
        self.phase = "recall"
        if self.tools.query is not None and self.findings:
            self.calls = [self.tools.query.query(tags=[tag_of(self.view.task)], limit=100)]
            self.said.append("I gather what I found.")

    def _recall(self) -> None:
        """Fetch what memory listed, and a result that was shortened in the meantime."""
        self.phase = "answer"
        listed = "\n".join(call.result for call in self.view.last)
        found = findings_in([listed])
        if self.tools.retrieve is not None and len(found) < min(3, self.findings):
            self.calls = [self.tools.retrieve.retrieve(identifier) for identifier in items_in(listed, limit=12)]
        if self.tools.retrieve_content is not None and (shortened := self._shortened()):
            self.calls.append(self.tools.retrieve_content.retrieve(shortened, search=self.main[0].word))
        elif self.tools.look_back is not None and self.view.others:
            # Earlier turns stand in the view as summaries only: one look at what was found there first.
            self.calls.append(self.tools.look_back.look_back(self.main[0].word))
        if self.calls:
            self.said.append("I fetch what I need of it.")
            # What memory listed may be shortened by the next turn; the note is the newest thing in view then.
            self.said.extend(f"Found: {finding}" for finding in sorted(found, key=str))

    def _fetch(self) -> None:
        if self.tools.fetch is not None and not self.view.calls:
            self.calls = [ToolUse("", self.tools.fetch.name, {"url": url}) for url in _URL.findall(self.view.task)[:3]]

    # --- helpers ----------------------------------------------------------------------------------------------

    def _find(self, pattern: str, *, path: str | None, exact: bool = False) -> None:
        assert self.tools.search is not None
        self.calls.append(self.tools.search.search(pattern, path=path, regex=True, ignore_case=not exact, limit=60))

    def _look_into(self, place: str) -> None:
        self.queue.pop(place)
        words = [keyword.stem for keyword in (*self.main[:8], *related(self.main)[:4])]
        assert self.tools.search is not None
        pattern = any_pattern(words) if self.tools.search.is_regex else words[0]
        self._find(pattern, path=place[:-2])

    def _ranked(self) -> list[str]:
        """The queue, the most promising first; a file that was read already has to be better to be read again."""

        def value(place: str) -> float:
            path = place.rpartition(":")[0]
            times = sum(seen.rpartition(":")[0] == path for seen in self.viewed)
            outside = bool(self.focus) and not path.startswith(f"{self.focus}/")
            return self.queue[place] / (1 + 0.8 * times) * (0.25 if outside else 1.0)

        worth_it = 0.8 * sum(keyword.weight for keyword in self.main) / len(self.main)
        return sorted((p for p in self.queue if value(p) >= worth_it), key=lambda place: (-value(place), place))

    def _folder(self) -> str:
        """The folder that is called like something asked for and holds the best files; "" for none."""
        stems = {keyword.stem for keyword in self.main if keyword.weight >= 1}
        for place in self._ranked():
            parts = place.rpartition(":")[0].split("/")[:-1]
            for depth, part in enumerate(parts, 1):
                if part.lower() in stems:
                    return "/".join(parts[:depth])
        return ""

    def _last_path(self) -> str | None:
        return self.viewed[-1].rpartition(":")[0] if self.viewed else None

    def _follow_ups(self) -> int:
        return sum(term.startswith("name:") for term in self.searched) // 2

    def _shortened(self) -> str | None:
        """The citation of a file view that was shortened since: it may be worth a second look."""
        views = self.view.called(self.tools.view.name) if self.tools.view is not None else ()
        return next((m[1] for call in views if (m := _CONTENT_ID.search(call.result[:400]))), None)

    def _store(self, fresh: list[Passage]) -> None:
        if self.tools.store is not None:
            tags = [FINDING, tag_of(self.view.task), self.main[0].word.lower()]
            store = self.tools.store
            self.calls = [*(store.store(p.cited, tags, source=f"{p.path}:{p.line}") for p in fresh), *self.calls]

    def _progress(self) -> Progress:
        return Progress(
            step=self.step,
            phase=self.phase,
            focus=self.focus,
            searched=tuple(self.searched[-16:]),
            viewed=tuple(self.viewed[-14:]),
            queue=tuple(f"{place}@{self.queue[place]:.2f}" for place in self._ranked()[:8]),
            terms=tuple(self.terms[:6]),
            findings=self.findings,
        )

    def _answer(self, fresh: list[Passage]) -> str:
        if self.tools.query is not None and self.findings:
            # Memory has them all. What else is in view depends on what was shortened meanwhile, and the same
            # work should come to the same answer.
            results = [call.result for call in self.view.last if not call.failed]
            found = findings_in([*self.view.notes[-1:], *results])
        else:
            results = [call.result for call in self.view.calls if not call.failed]
            seen = (passage.cited for passage in fresh)
            found = findings_in([*self.view.notes, *seen, *results, *self.view.others])
        if found or self.tools.view is not None:
            return answer(found, self.wanted)
        # A tool that gives no places: quote what it said.
        rows = list(dict.fromkeys(row for result in results for row in sentences(result)))
        quoted = best((Passage("", n * 2, row, "prose") for n, row in enumerate(rows)), self.wanted, limit=5)
        return "\n".join(f"- {passage.text}" for passage in quoted) or answer([], self.wanted)


def _path_of(call: Call) -> str:
    """The file that a view shows: as it was asked for, else as the header names it."""
    for name in ("path", "file", "file_path", "filename"):
        if isinstance(call.input.get(name), str):
            return str(call.input[name])
    return call.result.split(maxsplit=1)[0]
