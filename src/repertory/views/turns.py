"""What on a run's record is an answer, and to what: a run that has answered can be asked again.

All of it is read from the record, so a restart between a question and its answer changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from repertory.llm.messages import text_of, tool_uses
from repertory.record import Entry
from repertory.runs.live import LiveRun
from repertory.views.answers import is_part
from repertory.views.results import ResultForm


def result_form(live: LiveRun) -> ResultForm | None:
    """How the model of a run gives its result; None for text."""
    agent, kind = live.agent, live.agent.output_type
    if kind is None:
        return None
    return ResultForm(kind, live.model.profile, options=agent.options, retries=agent.output_retries)


def find_answer(entries: Sequence[Entry], form: ResultForm | None) -> str | None:
    """The answer with the parts before it, if the last turn is one: no call, nor cut off, paused or empty."""
    if form is not None:
        return form.find(entries)
    last, text = entries[-1], text_of(entries[-1].content).strip()
    if last.role != "assistant" or tool_uses(last.content) or not text or is_part(last):
        return None
    parts, asked_on = [text], False
    for entry in reversed(entries[: last.position]):
        if entry.kind in ("retry-context", "system"):
            asked_on = True
        elif asked_on and is_part(entry):
            parts.append(text_of(entry.content))
            asked_on = False
        else:
            break
    return "".join(reversed(parts))


def answer_to(entries: Sequence[Entry], message_id: str, form: ResultForm | None, *, result: str | None) -> str | None:
    """The answer that followed a message: the one that stood when somebody next said something, or the run was done.

    Args:
        entries: The record.
        message_id: The message.
        form: How the run's model gives its result.
        result: The run's result; None where it is not done.

    Returns:
        The answer; None where there is none yet.
    """
    read = next((entry.position for entry in entries if entry.message_id == message_id), None)
    if read is None:
        return None
    for entry in entries[read + 1 :]:
        if entry.kind in ("user-input", "lead-input"):
            end = entry.position
            while entries[end - 1].kind == "system":  # such as a reminder: what it followed was an answer for all that
                end -= 1
            answer = find_answer(entries[:end], form)
            if answer is not None:
                return answer
    return result


def last_asked(entries: Sequence[Entry]) -> int:
    """The iteration after which the user last said something; 0 for the task."""
    return max((entry.iteration for entry in entries if entry.kind == "user-input"), default=0)
