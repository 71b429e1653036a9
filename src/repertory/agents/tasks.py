"""Typed tasks: how a task is checked against an agent's ``input``, stored, and shown to the model."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from repertory._choices import check_pattern, check_text, show
from repertory._json_text import decode_text
from repertory._json_types import JsonType, inlined, resolve
from repertory.agents.agent import Agent
from repertory.errors import ConfigurationError
from repertory.llm.messages import Json
from repertory.record.rows import plain_text
from repertory.tools.schema import render_signature

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def task_schema(agent: Agent[Any]) -> Json:
    """JSON schema of an agent's task, without references, so that it can be embedded in another schema."""
    return {"type": "string"} if agent.input_type is None else inlined(agent.input_type.schema)


def read_task(agent: Agent[Any], task: object) -> str:
    """Check a task against its agent's ``input``, and return the text to record: the task itself, or JSON.

    Args:
        agent: The agent that will do it.
        task: A text; for an agent with ``input``, a value of that type, its JSON representation, or JSON text.

    Raises:
        ConfigurationError: The task does not fit; the message names the field.
    """
    kind = agent.input_type
    if kind is None and not isinstance(task, str):
        raise ConfigurationError(
            f"expected a task with some text, got {show(task)}; agent {agent.name} takes a value if its input is a type"
        )
    if kind is None:
        return check_text("a task", task)
    try:
        given = decode_text(plain_text(task)) if isinstance(task, str) else decode_text(kind.write(task))
        return kind.write(kind.read(given))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"a task of agent {agent.name} must be {_shape(kind)}, or JSON of it: {error}; got {show(task)}"
        ) from None


def _shape(kind: JsonType) -> str:
    """The name of a type, with its fields if it has some: whoever gives a task may not have read its definition."""
    fields = resolve(kind.schema, kind.schema)
    if "properties" not in fields:
        return kind.name
    return render_signature(kind.name, {"required": [], **fields, "$defs": kind.schema.get("$defs", {})})


def check_run_id(run_id: str) -> str:
    """Return a valid root id: file names and the ids of runs below are made from it; else ``ConfigurationError``."""
    words = "be a letter or digit, then letters, digits, _ and -, at most 100 in all"
    return check_pattern("run_id", run_id, _RUN_ID, words)


def show_task(agent: Agent[Any], task: str) -> str:
    """A recorded task, as the model reads it."""
    if agent.input_type is None:
        return task
    return f"Your task, as JSON ({agent.input_type.name}):\n{msgspec.json.format(task, indent=2)}"
