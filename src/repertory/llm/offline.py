"""A stand-in for a language model that needs no key and no network: rules, not intelligence.

It plans with key words, searches, reads around the best hits, and answers by quoting what fits, with its source; with a
team it splits the question and delegates the parts. Everything around it is real. It keeps no state: the next turn
follows from the newest turn in view, with what came back, and from a line of notes that ends each of its own texts. So
it does not matter how the turns before are shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio.lowlevel
import msgspec

from repertory.llm._quoting import (
    Keyword,
    choose,
    cited_in,
    fit,
    keywords,
    quotable,
    sentences,
    shorten,
    source_of,
    stem,
)
from repertory.llm.estimate import estimate_tokens
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
from repertory.llm.profiles import OFFLINE, ModelProfile

_NOTES = "Notes: "
_PART_OF = "This is part of a larger question:"
_FINDING = "finding"  # the tag of everything that is stored in memory
_PAGE = 200  # lines that one look at a file shows
_KEPT = 12  # findings that the notes hold
_PAGES = 24  # that they name, to be read
_MOST_PARTS = 5  # of a question

_SEARCH = re.compile(r"(^|_)(search|grep|lookup|find)($|_)")
_HIT = re.compile(r"^([^\s:][^:\n]*):(\d+): (.*)$", re.MULTILINE)
_NUMBERED = re.compile(r"^\s*(\d+)\t(.*)$", re.MULTILINE)
_FILE = re.compile(r"^(\S*\.(?!so|pyc|png|jpg|gif|zip|gz|whl|exe|db)\w{1,8})$", re.MULTILINE)
_ITEM = re.compile(r"^(item-\S+)", re.MULTILINE)
_DEFINITION = r"\b(class|def|func|fn|function|struct|interface)\s+\w*"

_ASKS = r"(?:how|what|why|where|when|which|who|does|do|is|are)\b"
_CLAUSE = re.compile(rf"\?\s+|[;:]\s+|,?\s+\b(?:and|but|while)\s+(?={_ASKS})|\.\s+|,\s+(?={_ASKS})", re.IGNORECASE)
_SUBJECT = re.compile(r"\b(?:does|do|did|is|are)\s+(?:the\s+)?(?:\w+'s\s+)?(\w+)", re.IGNORECASE)
_PRONOUN = re.compile(r"\b(its|their|it|they|them|those)\b", re.IGNORECASE)


@dataclass
class _Notes:
    """What the model tells itself from turn to turn.

    Attributes:
        task: What it was asked.
        step: Turns taken.
        pages: Pages of files to read, ``path:first line``, the most promising first.
        found: The lines that answer best so far, with their sources.
        parts: Of a lead: the parts of the question, and what was reported on each.
        alone: A lead whose team failed, and that works by itself since.
    """

    task: str = ""
    step: int = 0
    pages: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=dict)
    alone: bool = False


class OfflineModel:
    """A deterministic, rule-based stand-in for a language model. The same request gets the same answer.

    What it does is decided by what the request offers:

    - a ``delegate`` tool: it splits the question and delegates the parts side by side, then composes the answer;
    - file or search tools: it searches, reads around the best hits, stores findings in memory, and answers with
      citations;
    - neither: it quotes what fits the last message best from the context.

    Args:
        name: The model's name.
        steps: How many turns of searching and reading a question may take, before it answers.
        profile: What the planner is told; None for the profile of "offline" under this name.
    """

    def __init__(self, name: str = "offline", *, steps: int = 12, profile: ModelProfile | None = None) -> None:
        self._name = name
        self._steps = steps
        self._profile = profile or msgspec.structs.replace(OFFLINE, name=name)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def profile(self) -> ModelProfile:
        """What the planner is told: no prompt cache, and a small model's prices, which nobody bills."""
        return self._profile

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Answer one request. Never fails."""
        await anyio.lowlevel.checkpoint()
        response = respond(request, steps=self._steps)
        if on_event is not None:
            for block in response.content:
                if isinstance(block, Text):
                    on_event(TextDelta(block.text))
                elif isinstance(block, ToolUse):
                    on_event(ToolUseStarted(block.id, block.name))
        return response

    async def aclose(self) -> None:
        """Nothing to release."""

    def __repr__(self) -> str:
        return f"OfflineModel({self._name!r})"


def respond(request: ModelRequest, *, steps: int = 12) -> ModelResponse:
    """The answer to a request: a pure function, down to the ids of its tool calls."""
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
    """One turn: what came back is taken in, what to do next is decided, and both are written down."""

    def __init__(self, request: ModelRequest, steps: int) -> None:
        self.request = request
        self.steps = steps
        self.tools = {tool.name: tool for tool in request.tools}
        own = [message for message in request.messages if message.role == "assistant"]
        said = text_of(own[-1].content).rpartition(_NOTES)[2] if own else ""
        try:
            self.notes = msgspec.json.decode(said, type=_Notes)
        except msgspec.DecodeError:
            # A new question: behind the last answer, or at the beginning.
            asked = [block.text for block in request.messages[-1].content if isinstance(block, Text)]
            self.notes = _Notes(task=asked[0] if asked else "")
        # What the newest turn called, and what came back.
        results = {block.tool_use_id: block for block in request.messages[-1].content if isinstance(block, ToolResult)}
        called = tool_uses(own[-1].content) if own else ()
        self.calls = [(use, results[use.id]) for use in called if use.id in results]
        self.looked_back = any(use.name == "context_retrieve" for use in called)
        self.turns = sum(_NOTES in text_of(message.content) for message in own)  # of its own that are still in view
        self.wanted = _wanted(self.notes.task)
        self.words = [keyword.stem for keyword in self.wanted if keyword.weight >= 0.5][:6]
        self.next: list[ToolUse] = []
        self.said: list[str] = []

    def take(self) -> list[Block]:
        """Take one turn."""
        self.notes.step += 1
        search = self._search_tool()
        answer = ""
        if self._has("delegate", "agent", "task") and not self.notes.alone and self.words:
            answer = self._lead(search)
        if search is not None and self.words and not self.next and not answer:
            answer = self._research(search)
        if not self.next:
            return [Text(answer or self._quote())]
        written = msgspec.json.encode(self.notes).decode()
        return [Text("\n".join([*self.said, _NOTES + written])), *self.next]

    # --- a lead -----------------------------------------------------------------------------------------------

    def _lead(self, search: ToolSchema | None) -> str:
        """Delegate, look through what the team stored, answer; "" where there is more to do."""
        notes = self.notes
        newest = {use.name for use, _ in self.calls}
        if not notes.parts:
            names = self.tools["delegate"].input_schema["properties"]["agent"].get("enum") or []
            notes.parts = {part: [] for part in split(notes.task)} if names else {}
            for index, part in enumerate(notes.parts):
                task = f"{part}\n\n{_PART_OF} {notes.task}"
                self._call("delegate", agent=names[index % len(names)], task=task)
            self.said = [f"Plan: I delegate {len(notes.parts)} parts, to be looked into side by side.", *notes.parts]
        elif "delegate" in newest:
            if search is not None and all(result.is_error for _, result in self.calls):
                self.notes = _Notes(task=notes.task, alone=True)  # nobody could help
                return ""
            for use, result in self.calls:
                part = str(use.input.get("task", "")).partition("\n\n")[0]
                text = text_of(result)
                failed = "This part failed: " if result.is_error else ""
                notes.parts[part] = [] if failed else choose(cited_in(text), _wanted(part), limit=_KEPT)
                notes.parts[part] = notes.parts[part] or [failed + shorten(text, 400)]
            if self._has("memory_query", "text", "tags", "limit") and self._has("memory_retrieve", "id"):
                self.said = ["The reports are in. I look through what the team stored."]
                for part in notes.parts:
                    for keyword in _wanted(part)[:2]:
                        self._call("memory_query", text=keyword.word, tags=[_FINDING], limit=4)
        elif "memory_query" in newest:
            found = [item for _, result in self.calls for item in _ITEM.findall(text_of(result))]
            self.said = ["I fetch some of it."]
            for item in dict.fromkeys(found[: 2 * _MOST_PARTS]):
                self._call("memory_retrieve", id=item)
        elif "memory_retrieve" in newest:
            notes.found = [line for _, result in self.calls for line in cited_in(text_of(result))]
        return "" if self.next else self._compose()

    def _compose(self) -> str:
        """The whole answer of a lead: what fits the question best, then every part with what supports it."""
        parts = self.notes.parts
        cited = [line for lines in parts.values() for line in lines if cited_in(line)]
        short = choose([*cited, *self.notes.found], self.wanted, limit=2)
        sections = [" ".join(short) or "The team found nothing that can be quoted with a source."]
        told = set(short)
        for part, lines in parts.items():
            fresh = [line for line in (*lines, *self.notes.found) if line not in told]
            chosen = choose(fresh, _wanted(part), limit=3) or lines[:1] or ["Nothing was reported."]
            told.update(chosen)
            sections.append("\n".join([f"**{part}**", *(f"- {line}" for line in chosen)]))
        return "\n\n".join(sections)

    # --- a researcher -----------------------------------------------------------------------------------------

    def _research(self, search: ToolSchema) -> str:
        """Search, read page after page, answer; "" where there is more to do."""
        notes = self.notes
        files = search.name == "search_files" and self._has("view_file", "path", "start_line", "end_line")
        fresh = self._take_in()
        if not files and notes.step == 1:
            self.said.append(f"I search for {', '.join(self.words[:3])}.")
            for keyword in self.wanted[:3]:
                self._call(search.name, **{search.input_schema["required"][0]: keyword.word})
        elif files and notes.step == 1 and self._has("list_files", "pattern", "limit"):
            self.said.append(f"I look for files called like {', '.join(self.words)}.")
            for word in self.words:
                self._call("list_files", pattern=f"**/*{word}*/**", limit=60)
        elif files and notes.step <= 2 and not notes.pages:
            self._search()
        elif notes.pages and notes.step < self.steps - 1:
            path, _, first = notes.pages.pop(0).rpartition(":")
            self.said.append(f"I read {path} from line {first}.")
            self._call("view_file", path=path, start_line=int(first), end_line=int(first) + _PAGE - 1)
        elif self.turns < notes.step - 1 and self._has("context_retrieve", "topic", "limit") and not self.looked_back:
            self.said.append("I look back at what has left the view.")
            self._call("context_retrieve", topic=self.wanted[0].word, limit=1)
        if self.next and self._has("memory_store", "content", "source", "tags"):
            for line in fresh:
                self._call("memory_store", content=line, source=source_of(line), tags=[_FINDING, self.wanted[0].word])
        return "" if self.next else self._answer()

    def _search(self) -> None:
        """Search the folder that is called like what is asked for, and the files that are."""
        listed = {path for _, result in self.calls for path in _FILE.findall(text_of(result))}
        files = sorted(listed, key=lambda path: (-fit(path, self.wanted), path))[:3]
        folders = files[0].split("/")[:-1] if files else []
        named = [index for index, folder in enumerate(folders, 1) if stem(folder) in self.words]
        words = "|".join(self.words)
        self.said.append(f"I search for {', '.join(self.words)}.")
        for pattern, path in (
            (_DEFINITION + f"({words})", "/".join(folders[: named[0]]) if named else "."),
            *((words, path) for path in files),
        ):
            self._call("search_files", pattern=pattern, path=path, regex=True, ignore_case=True, limit=100)

    def _take_in(self) -> list[str]:
        """Note the pages and findings that the newest turn brought; returns the findings of the page just read."""
        notes = self.notes
        fresh: list[str] = []
        others: list[str] = []
        hits: list[tuple[str, str, str]] = []
        for use, result in self.calls:
            text = "" if result.is_error else text_of(result)
            if use.name == "view_file":
                lines = [(int(number), line) for number, line in _NUMBERED.findall(text)]
                fresh += choose(quotable(str(use.input.get("path", "")), lines), self.wanted, limit=3)
            elif use.name == "search_files":
                hits += _HIT.findall(text)
            elif use.name == "context_retrieve":
                others += cited_in(text)
            elif use.name not in ("list_files", "memory_store"):
                others += [row for line in text.splitlines() for row in sentences(line)]
        if hits:
            notes.pages = self._pages(hits)
        fresh = [line for line in fresh if fit(line, self.wanted) >= 1]
        self.said = [f"Found: {line}" for line in fresh]
        notes.found = choose([*notes.found, *fresh, *filter(str.strip, others)], self.wanted, limit=_KEPT)
        return fresh

    def _pages(self, hits: Sequence[tuple[str, str, str]]) -> list[str]:
        """The pages on which the lines lie that a search found, the most promising first."""
        values: dict[tuple[str, int], list[float]] = {}
        for path, number, line in hits:
            value = fit(line, self.wanted) * (1.5 if re.search(_DEFINITION, line) else 1.0)
            values.setdefault((path, (int(number) - 1) // _PAGE * _PAGE + 1), []).append(value)
        scores: dict[tuple[str, int], float] = {}
        for (path, first), found in values.items():
            # The best lines of a page count; a crowd of weak ones does not.
            best = sum(value / (rank + 1) for rank, value in enumerate(sorted(found, reverse=True)[:8]))
            scores[path, first] = best + 2 * fit(path, self.wanted)
        return [f"{path}:{first}" for path, first in sorted(scores, key=lambda page: (-scores[page], page))[:_PAGES]]

    def _answer(self) -> str:
        chosen = choose(self.notes.found, self.wanted, limit=6)
        if not chosen:
            about = ", ".join(keyword.word for keyword in self.wanted[:5])
            return f"I found nothing about {about} that I could quote."
        cited = bool(cited_in(chosen[0]))
        return "\n".join(f"{'- ' if index or not cited else ''}{line}" for index, line in enumerate(chosen))

    # --- neither ----------------------------------------------------------------------------------------------

    def _quote(self) -> str:
        """The sentences in view that fit the last message best."""
        messages = [*self.request.messages]
        rows = [row for message in messages[:-1] for block in message.content for row in sentences(text_of(block))]
        # A question may bring its own material; the sentences that ask are not part of the answer.
        rows += [row for row in sentences(text_of(messages[-1].content)) if not row.endswith("?")]
        rows += sentences(text_of(self.request.system))
        fitting = [shorten(row, 400) for row in rows if row != self.notes.task and fit(row, self.wanted)]
        chosen = choose(fitting, self.wanted, limit=5)
        if not chosen:
            about = ", ".join(keyword.word for keyword in self.wanted[:5]) or "this"
            return f"I work offline, by rules, and nothing in the conversation tells about {about}."
        return "\n".join(f"- {row}" for row in chosen) if len(chosen) > 1 else chosen[0]

    # --- tools ------------------------------------------------------------------------------------------------

    def _has(self, name: str, *arguments: str) -> bool:
        """Whether there is a tool of this name that takes these arguments and needs no other."""
        schema: Json = self.tools[name].input_schema if name in self.tools else {}
        return set(schema.get("required") or ()) <= set(arguments) <= set(schema.get("properties") or ())

    def _call(self, name: str, **arguments: Any) -> None:
        self.next.append(ToolUse("", name, arguments))

    def _search_tool(self) -> ToolSchema | None:
        """The search over files; else a tool that says that it searches and needs nothing but what for."""
        if self._has("search_files", "pattern", "path", "regex", "ignore_case", "limit"):
            return self.tools["search_files"]
        for tool in self.tools.values():
            required = tool.input_schema.get("required") or ()
            known = tool.name.startswith(("memory_", "context_"))
            if _SEARCH.search(tool.name) and not known and len(required) == 1:
                return tool
        return None


def _wanted(task: str) -> list[Keyword]:
    """What a task asks for; the larger question that it is part of counts too, but less."""
    own, _, larger = task.partition(_PART_OF)
    main = keywords(own)
    known = {keyword.stem for keyword in main}
    context = (keyword for keyword in keywords(larger) if keyword.stem not in known)
    return [*main, *(msgspec.structs.replace(keyword, weight=keyword.weight * 0.25) for keyword in context)]


def split(question: str) -> list[str]:
    """Cut a question into three to five that differ: its clauses, the things it names, or angles on one thing.

    Args:
        question: What was asked; only its first paragraph counts.

    Returns:
        Nothing where the question says nothing.
    """
    head = " ".join(question.split("\n\n", maxsplit=1)[0].split())
    clauses = [clause for part in _CLAUSE.split(head) if keywords(clause := part.strip(" ?.,;:"))]
    if not clauses:
        return []
    subject = _SUBJECT.search(clauses[0])
    topic = subject[1] if subject and keywords(subject[1]) else keywords(clauses[0])[0].word
    parts = [
        f"{clause} (in {topic})" if index and _PRONOUN.search(clause) else clause
        for index, clause in enumerate(clauses)
    ]
    about = " and ".join(keyword.word for keyword in keywords(head, limit=2))
    angles = (
        f"Which definitions concern {about}, and what are they for",
        f"What happens step by step in the code around {about}",
        f"How is the code around {about} used and tested",
    )
    parts = list(dict.fromkeys([*parts, *angles]))[: min(max(3, len(parts)), _MOST_PARTS)]
    return [f"{part[:1].upper()}{part[1:]}?" for part in parts]
