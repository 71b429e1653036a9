"""Finds the answers on a run's record, and to which message; and how a model gives a typed result.

A model whose provider makes answers fit a schema gives its result as the text of its answer. Any other model calls
``final_result``, a tool that is never run: the call is the answer, and its own result, which every later request must
contain, only says whether it was accepted. A run uses only one of the two, so the prompt cache stays valid. The record
alone decides, so a crash between an answer and the end of its run changes nothing. A run that has answered can be asked
again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from repertory._frozen import thaw
from repertory._json_text import decode_text
from repertory._json_types import JsonType
from repertory.errors import ModelError, ModelRequestRejected, ResultInvalid
from repertory.llm.json_outputs import FINAL_RESULT, output_format
from repertory.llm.messages import Json, Text, ToolUse, text_of, tool_uses
from repertory.llm.model import ToolSchema
from repertory.llm.profiles import ModelProfile
from repertory.record import Entry
from repertory.runs.live import LiveRun
from repertory.tools.schema import ARGUMENT, render_signature
from repertory.views.answers import is_part

_ACCEPTED: Final = "The result was taken."
_DESCRIPTION: Final = """\
Give your result, which ends your task. Call it once you have all that you need, alone in its turn: other calls of the
same turn are made first, and the result is not taken where one of them fails."""
_INSTRUCTION: Final = f"When you are done, give your result by calling `{FINAL_RESULT}`. Text alone is no result."
# A partial JSON text cannot be continued: the provider would make the rest fit the schema from its beginning.
CUT_OFF_RESULT: Final = (
    "Your last message was cut off at the output limit. Give your whole result anew, in fewer words."
)
# Matches where servers name the field, as they do in all refusals that users have quoted.
_FORMAT_FIELD: Final = re.compile(r"output[ _](config|format)", re.IGNORECASE)


class Reply(msgspec.Struct, frozen=True):
    """The answer to a call of ``final_result``.

    Attributes:
        use: The call.
        text: What the model is told.
        result: The result as JSON, if it was accepted; None if not.
        error: Why it does not fit; None if it fits, or was not checked.
    """

    use: ToolUse
    text: str
    result: str | None = None
    error: ResultInvalid | None = None


class ResultForm:
    """The form in which the model of one run gives its result.

    Attributes:
        schemas: The ``final_result`` tool; () if the text of the answer is the result.
        options: Fields of the requests: the agent's own, and what makes the answer fit the schema.
        told: The end of the instructions; "" for nothing.
    """

    def __init__(self, kind: JsonType, profile: ModelProfile, *, options: Json, retries: int) -> None:
        self._kind = kind
        self._retries = retries
        self._failed_attempts = 0
        # Tools and the provider's format only take objects, whose fields have names as an argument has. Any other value
        # becomes the only field of an object.
        fields = kind.schema.get("properties")
        self._wrapped = fields is None or not all(map(ARGUMENT.fullmatch, fields))
        schema = _wrap(kind.schema) if self._wrapped else kind.schema
        self._signature = render_signature(FINAL_RESULT, {"required": [], **schema})
        shown = output_format(schema) if profile.json_outputs else None
        self.schemas: tuple[ToolSchema, ...] = ()
        self.options, self.told = options, ""
        if shown is not None:
            self.options = {**options, "output_config": {**thaw(options.get("output_config") or {}), "format": shown}}
            self._signature = f"JSON of the schema {msgspec.json.encode(shown['schema']).decode()}"
        else:
            self.schemas, self.told = (ToolSchema(FINAL_RESULT, _DESCRIPTION, schema),), _INSTRUCTION

    def explain(self, error: ModelError) -> str:
        """Say what to do if the provider refused the form of the result; "" if it refused something else."""
        if self.schemas or type(error) is not ModelRequestRejected or not _FORMAT_FIELD.search(str(error)):
            return ""
        return (
            f"; a profile with msgspec.structs.replace(profile, json_outputs=False) has the model give its result by "
            f"calling {FINAL_RESULT} instead"
        )

    def find(self, entries: Sequence[Entry]) -> str | None:
        """Return the run's result as JSON, if the last turn on its record gives one and nobody has spoken since."""
        last = entries[-1]
        if last.role == "assistant" and not tool_uses(last.content):
            return None if is_part(last) else self._read_answer(last)[0]
        return next((reply.result for reply in self._repeat_replies(entries) if reply.result is not None), None)

    def is_outdated(self, entries: Sequence[Entry]) -> bool:
        """Whether the last turn gave a result that was accepted, but does not fit what is asked for now."""
        return any(reply.error is not None for reply in self._repeat_replies(entries))

    def _repeat_replies(self, entries: Sequence[Entry]) -> list[Reply]:
        """Answer again the calls of the last turn that gave a result which was not refused."""
        place = next((at for at in range(len(entries) - 1, -1, -1) if entries[at].role == "assistant"), len(entries))
        results = {entry.tool_call_id: entry for entry in entries[place + 1 :]}
        if not results or None in results:  # somebody has spoken since
            return []
        return self.reply(entries[place], results, again=True)

    def reply(self, turn: Entry, results: Mapping[str | None, Entry], *, again: bool = False) -> list[Reply]:
        """Answer the calls of a turn that give a result, once all its other calls have theirs.

        Args:
            turn: The model's turn.
            results: The results of its calls, by call id.
            again: Answer calls again that have an answer; only those that were accepted can be accepted.

        Returns:
            The replies; none if another call has no result yet, since the process that resumes the run makes that call.
        """
        uses = tool_uses(turn.content)
        others = [use for use in uses if use.name != FINAL_RESULT]
        if any(use.id not in results for use in others):
            return []
        failed = ", ".join(dict.fromkeys(use.name for use in others if _failed(results[use.id])))
        replies: list[Reply] = []
        for use in uses:
            if use.name != FINAL_RESULT or (
                (use.id not in results or _failed(results[use.id])) if again else use.id in results
            ):
                continue
            if failed:
                text = f"Not taken: {failed} failed in the same turn. See to that, then give your result again."
                replies.append(Reply(use, text))
            elif any(reply.result is not None for reply in replies):
                replies.append(Reply(use, "Not taken: an earlier call of the same turn gave the result."))
            else:
                replies.append(self._read_call(use))
        return replies

    def count(self, error: ResultInvalid) -> None:
        """Count a result that does not fit.

        Raises:
            ResultInvalid: No further attempt is allowed.
        """
        self._failed_attempts += 1
        if self._failed_attempts > self._retries:
            times = "one result" if self._failed_attempts == 1 else f"{self._failed_attempts} results"
            raise ResultInvalid(f"{times} did not fit, the last one: {error}")

    def ask_again(self, turn: Entry) -> str:
        """Return what the model is told about an answer that is not a result of the type.

        Raises:
            ResultInvalid: No further attempt is allowed.
        """
        error = self._read_answer(turn)[1]
        assert error is not None
        self.count(error)
        if self.schemas:
            return f"Give your result by calling `{FINAL_RESULT}`; your text was not taken, as {error}."
        return f"Your answer was not taken: {error}. Give the whole of it again, as {self._signature}."

    def reset_count(self) -> None:
        """Reset the count, because something else was asked."""
        self._failed_attempts = 0

    def _read_answer(self, turn: Entry) -> tuple[str | None, ResultInvalid | None]:
        """Return the result that a turn without calls gives, or why it gives none."""
        texts = [text_of(turn.content), *(block.text for block in turn.content[-1:] if isinstance(block, Text))]
        error: ResultInvalid | None = None
        for text in dict.fromkeys(map(_unfenced, texts)):
            try:
                return self._check(decode_text(text)), None
            except ResultInvalid as misfit:
                error = misfit
            except ValueError as broken:
                error = error or ResultInvalid(str(broken))
                if not text.startswith(("{", "[")):  # no JSON that went wrong, but words: a value of ``Report | str``
                    with contextlib.suppress(ResultInvalid):
                        return self._check(text), None
        return None, error

    def _read_call(self, use: ToolUse) -> Reply:
        try:
            return Reply(use, _ACCEPTED, self._check(thaw(use.input)))
        except ResultInvalid as error:
            return Reply(use, f"Not taken: {error}. Expected {self._signature}", error=error)

    def _check(self, value: Any) -> str:
        """Return the result as it goes on record.

        Raises:
            ResultInvalid: It does not fit.
        """
        if self._wrapped and isinstance(value, dict) and value.keys() == {"result"}:
            value = value["result"]
        try:
            written = self._kind.write(self._kind.read(value))
            self._kind.read_text(written)  # as its caller will: an infinite number is written as null
        except (ValueError, TypeError) as error:
            raise ResultInvalid(str(error)) from None
        return written


def read_result(kind: JsonType | None, text: str, *, where: str) -> Any:
    """Decode a recorded result for its caller.

    Raises:
        ResultInvalid: It does not fit the type, because it was given when another type was asked for.
    """
    if kind is None:
        return text
    try:
        return kind.read_text(text)
    except ValueError as error:
        raise ResultInvalid(f"{where} is on record, and does not fit {kind.name}: {error}") from error


# --- on record --------------------------------------------------------------------------------------------


def result_form(live: LiveRun) -> ResultForm | None:
    """Return how the model of a run gives its result; None for text."""
    agent, kind = live.agent, live.agent.output_type
    if kind is None:
        return None
    return ResultForm(kind, live.model.profile, options=agent.options, retries=agent.output_retries)


def find_answer(entries: Sequence[Entry], form: ResultForm | None) -> str | None:
    """Return the answer with the parts before it, if the last turn is one: without calls, and not cut off, paused or
    empty."""
    if form is not None:
        return form.find(entries)
    last = entries[-1]
    if last.role != "assistant" or tool_uses(last.content) or is_part(last):
        return None
    text = text_of(last.content).strip()
    if not text:
        return None
    parts, continuing = [text], False
    for entry in reversed(entries[: last.position]):
        if entry.kind in ("retry-context", "system"):
            continuing = True
        elif continuing and is_part(entry):
            parts.append(text_of(entry.content))
            continuing = False
        else:
            break
    return "".join(reversed(parts))


def answer_to(entries: Sequence[Entry], message_id: str, form: ResultForm | None, *, result: str | None) -> str | None:
    """Return the answer to a message: the last one before somebody spoke again, or before the run was done.

    Args:
        entries: The record.
        message_id: The message.
        form: How the run's model gives its result.
        result: The run's result; None if the run is not done.

    Returns:
        The answer; None if there is none yet.
    """
    read = next((entry.position for entry in entries if entry.message_id == message_id), None)
    if read is None:
        return None
    for entry in entries[read + 1 :]:
        if entry.kind in ("user-input", "lead-input"):
            end = entry.position
            while entries[end - 1].kind == "system":  # such as a reminder: the turn before it still was an answer
                end -= 1
            answer = find_answer(entries[:end], form)
            if answer is not None:
                return answer
    return result


def last_asked(entries: Sequence[Entry]) -> int:
    """Return the iteration after which the user last spoke; 0 for the task."""
    return max((entry.iteration for entry in entries if entry.kind == "user-input"), default=0)


# --- the parts --------------------------------------------------------------------------------------------


def _wrap(schema: Json) -> Json:
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    wrapped: Json = {"type": "object", "properties": {"result": inner}, "required": ["result"]}
    return {**wrapped, "$defs": schema["$defs"]} if "$defs" in schema else wrapped


def _failed(result: Entry) -> bool:
    return any(getattr(block, "is_error", False) for block in result.content)


def _unfenced(text: str) -> str:
    """Remove the code fence that models put around JSON."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text.partition("\n")[2].removesuffix("```")
    return text
