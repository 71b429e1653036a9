"""Which of the offered tools the offline model can use, recognised by name and by what they require."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from repertory.llm.messages import Json, ToolUse
from repertory.llm.model import ToolSchema

# What a property means, by the names that tools give it. The first that a tool has is used.
_QUERY = ("query", "pattern", "q", "text", "search", "term", "keywords", "regex")
_PATH = ("path", "file", "file_path", "filename", "directory", "folder")
_FIRST = ("start_line", "first_line", "start", "from_line", "line_start", "offset")
_LAST = ("end_line", "last_line", "end", "to_line", "line_end")
_COUNT = ("limit", "count", "lines", "max_lines", "num_lines")
_RANGE = ("line_range", "view_range", "range", "lines")
_CONTENT = ("content", "text", "value", "fact", "note", "body")
_TAGS = ("tags", "tag", "labels")
_ONE_ID = ("id", "item_id", "item", "citation", "citation_id", "content_id", "reference")
_IDS = (*_ONE_ID, "ids", "item_ids")
_LIMIT = ("limit", "max_results")
_SEARCH_NAME = re.compile(r"(^|_)(search|grep|lookup|find)($|_)")
_RETRIEVAL = frozenset({"retrieve_content", "context_retrieve"})


class Tool:
    """One tool, called by meaning: ``tool.call(query="lock", path="asyncio")``."""

    def __init__(self, schema: ToolSchema) -> None:
        self.name = schema.name
        self.description = schema.description
        self.properties: Json = schema.input_schema.get("properties") or {}
        self.required: frozenset[str] = frozenset(schema.input_schema.get("required") or ())

    def property_for(self, names: Sequence[str]) -> str | None:
        """The first of these names that the tool has."""
        return next((name for name in names if name in self.properties), None)

    def takes(self, *meanings: Sequence[str]) -> bool:
        """Whether everything the tool requires is one of these meanings, or has one permitted value."""
        known = {name for names in meanings for name in names}
        return all(name in known or "enum" in self.properties.get(name, {}) for name in self.required)

    @property
    def is_regex(self) -> bool:
        """Whether the tool's query is a regular expression, or can be said to be one."""
        if self.properties.get("regex", {}).get("type") == "boolean":
            return True
        query = self.properties.get(self.property_for(_QUERY) or "", {})
        words = f"{self.description} {query.get('description', '')}".lower()
        return "regular expression" in words or "regex" in words

    def _fill(self, **values: tuple[Sequence[str], Any]) -> Json:
        arguments: Json = {}
        for names, value in values.values():
            name = self.property_for([name for name in names if name not in arguments])
            if name is not None and value is not None:
                arguments[name] = _as_type(value, self.properties[name])
        for name in self.required - arguments.keys():
            choices = self.properties.get(name, {}).get("enum")
            if choices:
                arguments[name] = choices[0]
        return arguments

    def search(self, query: str, *, path: str | None, regex: bool, ignore_case: bool, limit: int) -> ToolUse:
        """Search for words or an expression, everywhere or under a path."""
        arguments = self._fill(query=(_QUERY, query), path=(_PATH, path or self._anywhere()), limit=(_LIMIT, limit))
        for name, value in (("regex", regex and self.is_regex), ("ignore_case", ignore_case)):
            if self.properties.get(name, {}).get("type") == "boolean":
                arguments[name] = value
        return ToolUse("", self.name, arguments)

    def view(self, path: str, first: int, last: int) -> ToolUse:
        """Show the lines ``first`` to ``last`` of a file."""
        if (name := self.property_for(_RANGE)) and self.properties[name].get("type") == "array":
            return ToolUse("", self.name, {**self._fill(path=(_PATH, path)), name: [first, last]})
        arguments = self._fill(path=(_PATH, path), first=(_FIRST, first), last=(_LAST, last))
        if self.property_for(_LAST) is None:
            arguments |= self._fill(path=(_PATH, path), count=(_COUNT, last - first + 1))
        return ToolUse("", self.name, arguments)

    def list(self, *, pattern: str, limit: int) -> ToolUse:
        """List the files whose paths fit a glob pattern."""
        arguments = self._fill(path=(_PATH, self._anywhere()), limit=(_LIMIT, limit))
        return ToolUse("", self.name, {**arguments, "pattern": pattern})

    def store(self, content: str, tags: Sequence[str], *, source: str) -> ToolUse:
        """Keep a finding."""
        values = self._fill(content=(_CONTENT, content), tags=(_TAGS, list(tags)), source=(("source",), source))
        return ToolUse("", self.name, values)

    def query(self, *, text: str | None = None, tags: Sequence[str] = (), limit: int = 20) -> ToolUse:
        """Look findings up, by words or by tag."""
        found = self._fill(tags=(_TAGS, list(tags) or None), text=(_QUERY, text), limit=(_LIMIT, limit))
        return ToolUse("", self.name, found)

    def retrieve(self, identifier: str, *, search: str | None = None) -> ToolUse:
        """Fetch one thing by its id, or the parts of it that have a word."""
        value = (
            [identifier] if self.property_for(("ids", "item_ids")) and not self.property_for(_ONE_ID) else identifier
        )
        return ToolUse("", self.name, self._fill(id=(_IDS, value), search=(_QUERY, search)))

    def look_back(self, topic: str) -> ToolUse:
        """Fetch what was said earlier of something, as it was."""
        return ToolUse("", self.name, self._fill(topic=(("topic",), topic), limit=(_LIMIT, 1)))

    def _anywhere(self) -> str | None:
        return "." if self.required & frozenset(_PATH) else None


def _as_type(value: Any, schema: Json) -> Any:
    """Give a value the form that a property has: a list where one is wanted, its first item where one is not."""
    kinds = schema.get("type") or [option.get("type") for option in schema.get("anyOf", ())]
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(value, list):
        return value if "array" in kinds else ",".join(map(str, value))
    return [value] if kinds == ["array"] else value


class Toolbox:
    """The tools of a request that the offline model knows how to use; None where there is none."""

    def __init__(self, schemas: Sequence[ToolSchema]) -> None:
        tools = {schema.name: Tool(schema) for schema in schemas}

        def named(name: str, *meanings: Sequence[str]) -> Tool | None:
            tool = tools.get(name)
            return tool if tool is not None and tool.takes(*meanings) else None

        delegate = named("delegate", ("agent", "task"))
        self.delegate = delegate if delegate and {"agent", "task"} <= delegate.properties.keys() else None
        self.search = named("search_files", _QUERY, _PATH) or next(
            (
                tool
                for name, tool in tools.items()
                if _SEARCH_NAME.search(name)
                and name not in _RETRIEVAL
                and not name.startswith("memory")
                and tool.takes(_QUERY, _PATH)
                and tool.property_for(_QUERY)
            ),
            None,
        )
        self.view = named("view_file", _PATH, _FIRST, _LAST, _COUNT, _RANGE) or named(
            "read_file", _PATH, _FIRST, _COUNT
        )
        self.list = named("list_files", _PATH)
        self.store = named("memory_store", _CONTENT, _TAGS)
        self.query = named("memory_query", _QUERY, _TAGS)
        self.retrieve = named("memory_retrieve", _IDS)
        self.retrieve_content = named("retrieve_content", _IDS)
        self.look_back = named("context_retrieve", ("topic",))
        self.fetch = next(
            (
                tool
                for tool in tools.values()
                if set(tool.required) == {"url"} and tool.name.startswith(("fetch", "get", "read"))
            ),
            None,
        )

    @property
    def can_research(self) -> bool:
        """Whether there is anything to look things up with."""
        return self.search is not None or self.fetch is not None
