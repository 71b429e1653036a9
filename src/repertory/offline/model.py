"""A stand-in for a language model that needs no key and no network: rules, not intelligence.

It plans with keywords, searches, reads around the best hits, and answers by quoting the best lines with their sources;
with a team it splits the question and delegates the parts. Everything around it is real. It keeps no state: the next
turn depends only on the newest turn in view, its results, and a line of notes at the end of each of its own texts. So
it does not matter how earlier turns are shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio.lowlevel
import msgspec

from repertory._choices import check_number
from repertory.llm.estimate import estimate_tokens
from repertory.llm.json_outputs import FINAL_RESULT
from repertory.llm.messages import Block, Json, Text, ToolResult, ToolUse, text_of, tool_uses
from repertory.llm.model import (
    ModelRequest,
    ModelResponse,
    StreamEvent,
    TextDelta,
    ToolSchema,
    ToolUseStarted,
    Usage,
    request_digest,
)
from repertory.llm.profiles import OFFLINE
from repertory.offline.facts import columns, table, telling, topic
from repertory.offline.filling import fill
from repertory.offline.parts import MOST_PARTS, split
from repertory.offline.quoting import (
    Keyword,
    choose,
    cited_in,
    fit,
    keywords,
    messages,
    quotable,
    sentences,
    shorten,
    stem,
)

_NOTES = "Notes: "
_PART_OF = "This is part of a larger question:"
_FINDING = "finding"  # the tag of everything that it stores in memory
_PAGE = 200  # lines that one read of a file shows
_KEPT = 12  # findings that the notes hold
_ROWS = 40  # rows of a table, for each part
_PAGES = 24  # pages to be read that the notes name
_AT_ONCE = 4  # documents that are fetched in one turn

_SEARCH = re.compile(r"(^|_)(search|grep|lookup|find)($|_)")
_FETCH = re.compile(r"(^|_)(fetch|read|open|load|get)(_(page|url|source|document|article|file))?$")
_CHECKER = re.compile(r"check|verif|review|critic")  # in the name of a team member
_ADDRESS = re.compile(r"https?://[^\s<>()\"']+|^\S*\.(?!so|pyc|png|jpg|gif|zip|gz|whl|exe|db)\w{1,8}$", re.MULTILINE)
_CITED = re.compile(r"(?:\[citation |content_id=\")([\w.-]+)")
_PASSAGE = re.compile(r"^--- lines? (\d+)[^\n]*\n(.*?)(?=\n\n--- |\Z)", re.MULTILINE | re.DOTALL)
_HIT = re.compile(r"^([^\s:][^:\n]*):(\d+): (.*)$", re.MULTILINE)
_NUMBERED = re.compile(r"^\s*(\d+)\t(.*)$", re.MULTILINE)
_FILE = re.compile(r"^(\S*\.(?!so|pyc|png|jpg|gif|zip|gz|whl|exe|db)\w{1,8})$", re.MULTILINE)
_ITEM = re.compile(r"^(item-\S+)", re.MULTILINE)
_DEFINITION = r"\b(class|def|func|fn|function|struct|interface)\s+\w*"


@dataclass
class _Notes:
    """The model's notes to itself, passed from turn to turn.

    Attributes:
        task: What it was asked.
        step: Turns taken.
        pages: Pages of files to read, ``path:first line``, the most promising first.
        found: The best lines so far, with their sources.
        parts: For a lead: the parts of the question, and what was reported on each.
        cited: Documents that came as citations, by content id, with their addresses; omitted if there are none.
        checked: For a lead: what the checkers said of the others' reports; omitted before they are asked.
    """

    task: str = ""
    step: int = 0
    pages: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=dict)
    cited: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    checked: list[str] | msgspec.UnsetType = msgspec.UNSET


class OfflineModel:
    """A deterministic, rule-based stand-in for a language model. The same request gets the same answer.

    What it does depends on the tools in the request:

    - a ``delegate`` tool: it splits the question, delegates the parts side by side, lets members whose name suggests
      checking check what the others found, then composes the answer;
    - file or search tools: it searches, reads around the best hits or fetches what was found, stores findings in
      memory, and answers with citations;
    - neither: it quotes what fits the last message best from the context.

    A question for facts of a kind (since when, when removed, what instead) gets a table of the lines that state one,
    and a question about several places is split by them.

    A typed result is filled in from the lines of its answer, by equally simple rules. What they cannot fill in (a date,
    a pattern, unique items) does not fit the type, and the run fails with an error that says so.

    Attributes:
        name: "offline".
        profile: No prompt cache, and the prices of a small model, which nobody bills.

    Args:
        steps: How many turns of searching and reading a question may take. After these it may look up what they found,
            and answers.

    Raises:
        ConfigurationError: ``steps`` is not a whole number of at least 1.
    """

    name = OFFLINE.name
    profile = OFFLINE

    def __init__(self, *, steps: int = 10) -> None:
        check_number("OfflineModel: steps", steps, int, least=1)
        self._steps = steps

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Answer one request. Never fails."""
        await anyio.lowlevel.checkpoint()
        response = respond(request, steps=self._steps)
        if on_event is not None:
            for block in response.content:
                if isinstance(block, Text):
                    said, notes, _ = block.text.partition(_NOTES)
                    if said := said.rstrip() if notes else said:  # followers of the stream do not need the notes
                        on_event(TextDelta(said))
                elif isinstance(block, ToolUse):
                    on_event(ToolUseStarted(block.id, block.name))
        return response

    async def aclose(self) -> None:
        """Nothing to release."""

    def __repr__(self) -> str:
        return f"OfflineModel({self.name!r})"


def respond(request: ModelRequest, *, steps: int = 10) -> ModelResponse:
    """Answer a request: a pure function, down to the ids of the tool calls."""
    digest = request_digest(request)
    content = tuple(
        msgspec.structs.replace(block, id=f"toolu_{digest}_{index}") if isinstance(block, ToolUse) else block
        for index, block in enumerate(_Turn(request, steps).take())
    )
    return ModelResponse(
        content=content,
        stop_reason="tool_use" if tool_uses(content) else "end_turn",
        usage=Usage(input_tokens=estimate_tokens(request), output_tokens=estimate_tokens(content)),
        model=request.model,
        response_id=f"msg_{digest}",
    )


class _Turn:
    """One turn: read the results, decide what to do next, and write both into the notes."""

    def __init__(self, request: ModelRequest, steps: int) -> None:
        self.messages, self.system = request.messages, request.system
        self.steps = steps
        self.tools = {tool.name: tool for tool in request.tools}
        self.format: Json | None = (request.options.get("output_config") or {}).get("format")
        own = [message for message in request.messages if message.role == "assistant"]
        said = text_of(own[-1].content).rpartition(_NOTES)[2] if own else ""
        try:
            self.notes = msgspec.json.decode(said, type=_Notes)
            self.notes.pages = [page for page in self.notes.pages if re.fullmatch(r".+:\d+", page)]
        except msgspec.DecodeError:
            # A new question: after the last answer, or at the beginning.
            asked = [block.text for block in request.messages[-1].content if isinstance(block, Text)]
            self.notes = _Notes(task=_question(asked[0]) if asked else "")
        # The calls of the newest turn, and their results.
        results = {block.tool_use_id: block for block in request.messages[-1].content if isinstance(block, ToolResult)}
        called = tool_uses(own[-1].content) if own else ()
        self.calls = [(use, results[use.id]) for use in called if use.id in results]
        in_view = sum(_NOTES in text_of(message.content) for message in own)
        self.misses = in_view < self.notes.step and "context_retrieve" not in (use.name for use in called)
        self.wanted = _wanted(self.notes.task)
        self.heads = columns(self.notes.task)
        self.words = [keyword.stem for keyword in self.wanted if keyword.weight >= 0.5][:6]
        self.fetch = self._tool_named(_FETCH)  # fetches a document by its address alone
        self.search = self._search_tool()
        self.next: list[ToolUse] = []
        self.said: list[str] = []

    def take(self) -> list[Block]:
        """Take one turn."""
        self.notes.step += 1
        answer = ""
        leads = self.notes.step == 1 or self.notes.parts
        if self._has("delegate", "agent", "task") and leads and self.words:
            answer = self._lead()
        if self.search is not None and self.words and not self.next and not answer:
            answer = self._research(self.search)
        if not self.next:
            return [self._result(answer or self._quote())]
        return [Text("\n".join([*self.said, _NOTES + msgspec.json.encode(self.notes).decode()])), *self.next]

    def _result(self, answer: str) -> Block:
        """The answer in the requested form: text, JSON of a schema, or a final call."""
        if self.format is not None:
            return Text(msgspec.json.encode(fill(self.format["schema"], answer)).decode())
        if FINAL_RESULT in self.tools:
            return ToolUse("", FINAL_RESULT, fill(self.tools[FINAL_RESULT].input_schema, answer))
        return Text(answer)

    def _lead(self) -> str:
        """Delegate, search what the team stored, answer; "" while there is more to do."""
        notes = self.notes
        newest = {use.name for use, _ in self.calls}  # the last calls decide what comes next
        if not notes.parts:
            everybody = self._team()
            names = [name for name in everybody if not _CHECKER.search(name)] or everybody
            notes.parts = {part: [] for part in split(notes.task)} if names else {}
            for index, part in enumerate(notes.parts):
                task = f"{part}\n\n{_PART_OF} {notes.task}"
                self._call("delegate", agent=names[index % len(names)], task=task)
            self.said = [f"Plan: I delegate {len(notes.parts)} parts, to be looked into side by side.", *notes.parts]
        elif "delegate" in newest and notes.checked is not msgspec.UNSET:
            notes.checked = [line for _, result in self.calls for line in text_of(result).splitlines() if line.strip()]
        elif "delegate" in newest:
            if self.search is not None and all(result.is_error for _, result in self.calls):
                self.notes = _Notes(task=notes.task, step=1)  # no member could help, so it works alone
                return ""
            for use, result in self.calls:
                part = str(use.input.get("task", "")).partition("\n\n")[0]
                text = text_of(result)
                failed = "This part failed: " if result.is_error else ""
                notes.parts[part] = [] if failed else self._best(cited_in(text), part, limit=_KEPT)
                notes.parts[part] = notes.parts[part] or [failed + shorten(text, 400)]
            if self._has("memory_query", "text", "tags", "limit") and self._has("memory_retrieve", "id"):
                self.said = ["The reports are in. I look through what the team stored."]
                for part in notes.parts:
                    for keyword in _wanted(part)[:2]:
                        self._call("memory_query", text=keyword.word, tags=[_FINDING], limit=4)
        elif "memory_query" in newest:
            found = [item for _, result in self.calls for item in _ITEM.findall(text_of(result))]
            self.said = ["I fetch some of it."]
            for item in dict.fromkeys(found[: 2 * MOST_PARTS]):
                self._call("memory_retrieve", id=item)
        elif "memory_retrieve" in newest:
            notes.found = [line for _, result in self.calls for line in cited_in(text_of(result))]
        if not self.next and notes.checked is msgspec.UNSET:
            self._have_checked()
        return "" if self.next else self._compose()

    def _team(self) -> list[str]:
        return list(self.tools["delegate"].input_schema["properties"]["agent"].get("enum") or [])

    def _have_checked(self) -> None:
        """Ask the checkers to check what the others found, if there are both."""
        names = self._team()
        checkers = [name for name in names if _CHECKER.search(name)]
        claims = choose([line for lines in self.notes.parts.values() for line in lines], self.wanted, limit=_KEPT)
        if claims and 0 < len(checkers) < len(names):
            self.notes.checked = []
            self.said = ["I have that checked."]
            for name in checkers:
                self._call(
                    "delegate", agent=name, task="\n".join([self.notes.task, "", "Check these claims:", *claims])
                )

    def _compose(self) -> str:
        """The whole answer of a lead: the lines that fit the question best, then every part with its support."""
        parts = self.notes.parts
        if self.heads and (made := table((line for lines in parts.values() for line in lines), self.heads)):
            return made
        cited = [line for lines in parts.values() for line in lines if cited_in(line)]
        short = choose([*cited, *self.notes.found], self.wanted, limit=2)
        sections = [" ".join(short) or "The team found nothing that can be quoted with a source."]
        told = set(short)
        for part, lines in parts.items():
            fresh = [line for line in (*lines, *self.notes.found) if line not in told]
            chosen = choose(fresh, _wanted(part), limit=3) or lines[:1] or ["Nothing was reported."]
            told.update(chosen)
            sections.append("\n".join([f"**{part}**", *(f"- {line}" for line in chosen)]))
        if self.notes.checked:
            sections.append("\n".join(["**What the check says**", *self.notes.checked]))
        return "\n\n".join(sections)

    def _research(self, search: ToolSchema) -> str:
        """Search, read page after page, answer; "" while there is more to do."""
        notes = self.notes
        files = search.name == "search_files" and self._has("view_file", "path", "start_line", "end_line")
        fresh = self._take_in()
        has_time = notes.step <= self.steps
        if not files and notes.step == 1:
            self.said.append(f"I search for {', '.join(self.words[:3])}.")
            for keyword in self.wanted[:3]:
                self._call(search.name, **{search.input_schema["required"][0]: keyword.word})
        elif files and notes.step == 1 and self._has("list_files", "pattern", "limit"):
            self.said.append(f"I look for files called like {', '.join(self.words)}.")
            for word in self.words:
                self._call("list_files", pattern=f"**/*{word}*/**", limit=60)
        elif has_time and files and notes.step <= 2 and not notes.pages:
            self._search()
        elif has_time and files and notes.step == 3 and not notes.pages and not notes.found:
            self.said.append("No file and no definition is called so: I search every line.")
            self._call("search_files", pattern="|".join(self.words), path=".", regex=True, ignore_case=True, limit=100)
        elif notes.cited:
            self.said.append("I look up the passages about it.")
            words = " ".join(keyword.word for keyword in self.wanted[:4])
            for content_id in notes.cited:
                self._call("retrieve_content", content_id=content_id, search=words, limit=3)
        elif has_time and self.fetch is not None and notes.pages:
            pages, notes.pages = notes.pages[:_AT_ONCE], notes.pages[_AT_ONCE:]
            self.said.append(f"I fetch {', '.join(page.rpartition(':')[0] for page in pages)}.")
            for page in pages:
                self._call(self.fetch.name, **{self.fetch.input_schema["required"][0]: page.rpartition(":")[0]})
        elif has_time and notes.pages:
            path, _, first = notes.pages.pop(0).rpartition(":")
            self.said.append(f"I read {path} from line {first}.")
            self._call("view_file", path=path, start_line=int(first), end_line=int(first) + _PAGE - 1)
        elif self.misses and self._has("context_retrieve", "topic", "limit"):
            self.said.append("I look back at what has left the view.")
            self._call("context_retrieve", topic=self.wanted[0].word, limit=1)
        if self.next and self._has("memory_store", "content", "source", "tags"):
            for line in fresh:
                source = line.rpartition(" (")[2][:-1]
                self._call("memory_store", content=line, source=source, tags=[_FINDING, self.wanted[0].word])
        return "" if self.next else self._answer()

    def _search(self) -> None:
        """Search, in folders and files that are named like a keyword if there are any."""
        listed = {path for _, result in self.calls for path in _FILE.findall(text_of(result))}
        files = sorted(listed, key=lambda path: (-fit(path, self.wanted), path))[:3]
        folders = files[0].split("/")[:-1] if files else []
        named = [index for index, folder in enumerate(folders, 1) if stem(folder) in self.words]
        words = "|".join(self.words)
        self.said.append(f"I search for {', '.join(self.words)}.")
        folder = "/".join(folders[: named[0]]) if named else "."
        if self.heads and (about := topic(self.notes.task)):
            called = {keyword.word for keyword in self.wanted}  # folders or files with exactly these names
            tops = [path.partition("/")[0] for path in listed]
            path = min((top for top in tops if top.partition(".")[0] in called), default=folder)
            self._call("search_files", pattern=about.stem, path=path, regex=True, ignore_case=True, limit=100)
            return
        for pattern, path in [(f"{_DEFINITION}({words})", folder), *((words, path) for path in files)]:
            self._call("search_files", pattern=pattern, path=path, regex=True, ignore_case=True, limit=100)

    def _take_in(self) -> list[str]:
        """Note the pages and findings of the newest turn; returns the findings of the page just read."""
        notes = self.notes
        fresh: list[str] = []
        others: list[str] = []
        hits: list[tuple[str, str, str]] = []
        for use, result in self.calls:
            text = "" if result.is_error else text_of(result)
            if use.name == "view_file":
                lines = [(int(number), line) for number, line in _NUMBERED.findall(text)]
                path = str(use.input.get("path", ""))
                told = [*quotable(path, lines), *(messages(path, lines) if self.heads else ())]
                fresh += self._best(told, notes.task, limit=3)
            elif use.name == "search_files":
                hits += _HIT.findall(text)
            elif self.fetch is not None and use.name == self.fetch.name:
                address, cited = str(next(iter(use.input.values()), "")), _CITED.search(text)
                if cited and self._has("retrieve_content", "content_id", "search", "limit"):
                    notes.cited = {**(notes.cited or {}), cited[1]: address}
                else:
                    fresh += choose(quotable(address, enumerate(text.split("\n"), 1)), self.wanted, limit=3)
            elif use.name == "retrieve_content":
                waiting = dict(notes.cited or {})
                address = waiting.pop(str(use.input.get("content_id")), "")
                notes.cited = waiting or msgspec.UNSET
                passages = [(int(first), passage.split("\n")) for first, passage in _PASSAGE.findall(text)]
                told = [line for first, lines in passages for line in quotable(address, enumerate(lines, first))]
                fresh += choose(told, self.wanted, limit=3) if address else []
            elif self.fetch is not None and self.search is not None and use.name == self.search.name:
                found = [f"{address}:1" for address in _ADDRESS.findall(text)]
                notes.pages = list(dict.fromkeys([*notes.pages, *found]))[:_PAGES]
            elif use.name == "context_retrieve":
                others += cited_in(text)
            elif use.name not in ("list_files", "memory_store"):
                others += [row for line in text.splitlines() for row in sentences(line)]
        if hits:
            notes.pages = self._pages(hits)
        if self.heads:
            notes.found = telling([*notes.found, *fresh], notes.task, limit=_ROWS)
            self.said = [f"Found: {line}" for line in fresh]
            return fresh
        fresh = [line for line in fresh if fit(line, self.wanted) >= 1]
        self.said = [f"Found: {line}" for line in fresh]
        notes.found = choose([*notes.found, *fresh, *filter(str.strip, others)], self.wanted, limit=_KEPT)
        return fresh

    def _pages(self, hits: Sequence[tuple[str, str, str]]) -> list[str]:
        """The pages with the lines that a search found, the most promising first."""
        values: dict[tuple[str, int], list[float]] = {}
        for path, number, line in hits:
            value = fit(line, self.wanted) * (1.5 if re.search(_DEFINITION, line) else 1.0)
            values.setdefault((path, (int(number) - 1) // _PAGE * _PAGE + 1), []).append(value)

        def score(page: tuple[str, int]) -> float:
            # Only the best lines of a page count, so that many weak ones do not.
            best = sorted(values[page], reverse=True)[:8]
            return 2 * fit(page[0], self.wanted) + sum(value / (rank + 1) for rank, value in enumerate(best))

        ranked = sorted(values, key=lambda page: (-score(page), page))
        return [f"{path}:{first}" for path, first in ranked[:_PAGES]]

    def _best(self, lines: Iterable[str], task: str, *, limit: int) -> list[str]:
        """The lines that answer a task best; if it asks for facts of a kind, those that state one."""
        return telling(lines, task, limit=_ROWS) if self.heads else choose(lines, _wanted(task), limit=limit)

    def _answer(self) -> str:
        if self.heads and self.notes.found:
            is_part = _PART_OF in self.notes.task  # the lead that asked makes the table
            return "\n".join(self.notes.found) if is_part else table(self.notes.found, self.heads)
        chosen = choose(self.notes.found, self.wanted, limit=6)
        if not chosen:
            return f"I found nothing about {self._about()} that I could quote."
        return "\n".join(line if index == 0 and cited_in(line) else f"- {line}" for index, line in enumerate(chosen))

    def _about(self) -> str:
        words = {keyword.stem: keyword.word for keyword in reversed(self.wanted)}  # the larger question repeats some
        return ", ".join(reversed(list(words.values())[-5:])) or "this"

    def _quote(self) -> str:
        """The sentences in view that fit the last message best."""
        *before, newest = self.messages
        told = (text_of(block) for message in before for block in message.content)
        rows = [row for text in told if not _is_json_task(text) for row in sentences(text)]
        # A question may include its own material; sentences that ask are not part of the answer.
        asked = text_of(newest.content)
        rows += [row for row in sentences(asked) if not (row.endswith("?") or _is_json_task(asked))]
        rows += sentences(text_of(self.system))
        fitting = [shorten(row, 400) for row in rows if row != self.notes.task and fit(row, self.wanted)]
        chosen = choose(fitting, self.wanted, limit=5)
        if not chosen:
            return f"I work offline, by rules, and nothing in the conversation tells about {self._about()}."
        return "\n".join(f"- {row}" for row in chosen) if len(chosen) > 1 else chosen[0]

    def _has(self, name: str, *arguments: str) -> bool:
        """Whether there is a tool of this name that takes these arguments and needs no other."""
        schema: Json = self.tools[name].input_schema if name in self.tools else {}
        return set(schema.get("required") or ()) <= set(arguments) <= set(schema.get("properties") or ())

    def _call(self, name: str, **arguments: Any) -> None:
        self.next.append(ToolUse("", name, arguments))

    def _search_tool(self) -> ToolSchema | None:
        """The search over files; or else a tool whose name says that it searches and that needs only a query."""
        if self._has("search_files", "pattern", "path", "regex", "ignore_case", "limit"):
            return self.tools["search_files"]
        return self._tool_named(_SEARCH)

    def _tool_named(self, pattern: re.Pattern[str]) -> ToolSchema | None:
        """The first foreign tool with such a name that needs exactly one argument."""
        foreign = (tool for name, tool in self.tools.items() if not name.startswith(("memory_", "context_")))
        named = (tool for tool in foreign if pattern.search(tool.name))
        return next((tool for tool in named if len(tool.input_schema.get("required") or ()) == 1), None)


def _question(task: str) -> str:
    """The question in a task; for a JSON task, its texts."""
    try:
        fields = msgspec.json.decode(task.partition("\n")[2], type=dict[str, Any])
    except msgspec.DecodeError:
        return task
    return "\n".join(value for value in fields.values() if isinstance(value, str)) or task


def _is_json_task(text: str) -> bool:
    """Whether a text is a JSON task, which has nothing to quote."""
    return _question(text) != text


def _wanted(task: str) -> list[Keyword]:
    """The keywords of a task; those of the larger question that it is part of count too, but less."""
    own, _, larger = task.partition(_PART_OF)
    context = (msgspec.structs.replace(keyword, weight=keyword.weight * 0.25) for keyword in keywords(larger))
    return [*keywords(own), *context]
