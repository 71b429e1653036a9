"""Recordings in every format, whole and broken."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_stories import CHAT, LISTING, MESSAGES, TASK, event, read, session, write

from repertory.errors import RecordingError
from repertory.llm.messages import Image, Message, RawBlock, Text, ToolResult, ToolUse
from repertory.llm.model import Usage
from repertory.replay import RecordedRun, read_recordings
from repertory.replay.needs import needs_of
from repertory.replay.recording import NO_RESULT, RecordedMessage, record_run
from repertory.replay.sessions import Session

FORMATS: dict[str, list[Any]] = {
    "list of messages": [MESSAGES],
    "request body": [{"model": "claude-opus-4-6", "system": "You debug.", "messages": MESSAGES, "tools": []}],
    "line of a collection": [{"id": "run-7", "model": "m", "system": None, "messages": MESSAGES, "meta": {}}],
    "chat": [CHAT],
    "chat in a collection": [{"messages": CHAT}],
    "session": session(),
}


def shape(run: RecordedRun) -> list[Any]:
    """What a run says, without what a format has no place for."""
    return [
        (turn.content, {call: result.content for call, result in turn.results.items()}, turn.said) for turn in run.turns
    ]


EXPECTED = [
    (
        (
            Text("I look around."),
            ToolUse("call_1", "list", {"path": "src"}),
            ToolUse("call_2", "read", {"path": "README"}),
        ),
        {"call_1": LISTING, "call_2": "no such file"},
        ("Hurry up.",),
    ),
    (
        (ToolUse("call_3", "read", {"path": "src/cli/session_store.py"}),),
        {"call_3": "def parse_header(): ..."},
        (),
    ),
    ((Text("parse_header raises 40417."),), {}, ()),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_one_conversation_is_the_same_run_in_every_format(name: str, packed: bool, tmp_path: Path) -> None:
    """The format is found out by looking; gzip or not, one document or one a line."""
    run, *others = read(write(tmp_path / "recorded", *FORMATS[name], packed=packed))
    assert len(others) == (name == "session")  # its sub-agent
    assert run.task == TASK
    assert shape(run) == EXPECTED
    assert run.tools == ["list", "read"]
    assert run.system == ("You debug." if name in ("request body", "chat", "chat in a collection") else "")


def test_an_indented_document_is_read_as_well(tmp_path: Path) -> None:
    """JSON that spans lines, with the mark that some editors put in front."""
    path = tmp_path / "one.json"
    path.write_text("\ufeff" + json.dumps(MESSAGES, indent=2), encoding="utf-8")
    [run] = read(path)
    assert (run.id, shape(run)) == ("one", EXPECTED)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_of_unicode_are_read(encoding: str, tmp_path: Path) -> None:
    """As PowerShell writes them, with lines that end in CRLF; control: of another encoding nothing is guessed."""
    path = tmp_path / "set.jsonl"
    lines = json.dumps([{"role": "user", "content": "für"}, *MESSAGES[1:]], ensure_ascii=False) + "\r\n"
    path.write_bytes((lines * 2).encode(encoding))
    assert [(run.id, run.task) for run in read(path)] == [("set:1", "für"), ("set:2", "für")]
    path.write_bytes(lines.encode("latin-1"))
    [error] = read_recordings(path)
    assert "it is not JSON: 'utf-8' codec can't decode byte 0xfc" in str(error)


def test_a_collection_has_a_run_on_each_line(tmp_path: Path) -> None:
    """With their own ids, or numbered."""
    runs = read(write(tmp_path / "set.jsonl", {"id": "a", "messages": MESSAGES}, MESSAGES))
    assert [(run.id, run.file) for run in runs] == [("a", "set.jsonl"), ("set:2", "set.jsonl")]


def test_what_was_billed_is_read_where_it_was_recorded(tmp_path: Path) -> None:
    """A collection lists it turn by turn; a row that is none stands for nothing."""
    meta = {"usage": [[1, 2, 3, 4], "lost", [5, 6, 7, 8]]}
    [run] = read(write(tmp_path / "one.jsonl", {"messages": MESSAGES, "meta": meta}))
    assert [turn.usage for turn in run.turns] == [Usage(1, 4, 3, 2), None, Usage(5, 8, 7, 6)]


# --- sessions ---------------------------------------------------------------------------------------------


def test_a_session_keeps_its_model_times_and_usage(tmp_path: Path) -> None:
    """An answer that stands on four lines was billed once, and began when its first line with a time was written."""
    run, _ = read(write(tmp_path / "s.jsonl", *session()))
    assert (run.id, run.model) == ("s-1", "claude-opus-4-6")
    first, second, third = run.turns
    assert first.usage == Usage(input_tokens=9, output_tokens=5)
    assert second.at is not None
    assert first.at is not None
    assert (second.at - first.at, third.at) == (3590.0, None)
    assert first.results["call_2"].is_error


def test_what_was_taken_back_is_not_part_of_a_session(tmp_path: Path) -> None:
    """The dead branch is in the file, and in no request; control: it comes back when the newest message follows it."""
    run, _ = read(write(tmp_path / "s.jsonl", *session()))
    assert "Taken back." not in str(run)
    revived = [*session(), event("u9", "a0", "user", "Go on."), event("a9", "u9", "assistant", "Done.")]
    run, _ = read(write(tmp_path / "s.jsonl", *revived))
    assert [turn.content for turn in run.turns] == [(Text("Taken back."),), (Text("Done."),)]


def test_a_sub_agent_of_a_session_is_a_run_of_its_own(tmp_path: Path) -> None:
    """In the session's file or alone; without an id it goes by its first line."""
    _, agent = read(write(tmp_path / "s.jsonl", *session()))
    assert (agent.id, agent.task, agent.turns[0].content) == ("s-1/k", "Look at it.", (Text("Looked."),))
    lines = [line for line in session() if line.get("isSidechain")]
    for line in lines:
        del line["agentId"]
    [alone] = read(write(tmp_path / "agent.jsonl", *lines))
    assert (alone.id, alone.task) == ("s-1/k1", "Look at it.")


def test_a_session_goes_on_behind_a_compaction(tmp_path: Path) -> None:
    """The boundary has no parent, but says what it follows."""
    lines = [
        event("u1", None, "user", "Begin."),
        event("a1", "u1", "assistant", "Begun."),
        {"type": "system", "subtype": "compact_boundary", "uuid": "b", "parentUuid": None, "logicalParentUuid": "a1"},
        event("u2", "b", "user", "Summary so far.", isCompactSummary=True),
        event("a2", "u2", "assistant", "Ended."),
    ]
    [run] = read(write(tmp_path / "s.jsonl", *lines))
    assert [turn.said for turn in run.turns] == [("Summary so far.",), ()]


def test_a_session_without_links_is_read_in_its_order(tmp_path: Path) -> None:
    """Old files and exports have no tree; a loop in the links ends nothing."""
    lines = [{"type": m["role"], "message": m} for m in MESSAGES]
    [run] = read(write(tmp_path / "s.jsonl", *lines))
    assert (run.id, shape(run)) == ("s", EXPECTED)
    [run] = read(write(tmp_path / "s.jsonl", event("u", "a", "user", "?"), event("a", "u", "assistant", "!")))
    assert len(run.turns) == 1


def test_a_session_that_begins_with_a_compaction_has_its_summary_for_a_task(tmp_path: Path) -> None:
    """What the summary stands for is in another file; control: where it is in this one, the summary is left out."""
    boundary = {"type": "system", "uuid": "b", "parentUuid": None, "logicalParentUuid": "a1"}
    marks = {"isCompactSummary": True, "isVisibleInTranscriptOnly": True}
    lines = [
        boundary,
        event("u2", "b", "user", "The goal was to fix tide_4242.", **marks),
        event("a2", "u2", "assistant", "Ended."),
    ]
    [run] = read(write(tmp_path / "s.jsonl", *lines))
    assert run.task == "The goal was to fix tide_4242."
    before = [event("u1", None, "user", "Begin."), event("a1", "u1", "assistant", "Begun.")]
    [run] = read(write(tmp_path / "s.jsonl", *before, *lines))
    assert (run.task, "tide_4242" in str(run)) == ("Begin.", False)
    shown = {**marks, "isCompactSummary": False}  # what was shown to the user alone is no task either
    [run] = read(write(tmp_path / "s.jsonl", event("u", None, "user", "Tip.", **shown), *before))
    assert (run.task, "Tip." in str(run)) == ("Begin.", False)


@pytest.mark.parametrize(
    ("line", "content", "words"),
    [
        (13, 7, r"line 14: expected text or a list of blocks at \$\.message\.content, got int '7'"),
        (13, [{"type": "text", "text": 5}], r"line 14: expected text at \$\.message\.content\[0\]\.text, got int '5'"),
        (
            9,
            [{"type": "tool_result", "tool_use_id": ["call_2"], "content": "x"}],
            r"line 10: expected text at \$\.message\.content\[0\]\.tool_use_id, got list",
        ),
        (
            9,
            [{"type": "tool_result", "tool_use_id": "call_2", "content": [{"type": "image", "source": 3}]}],
            r"line 10: expected an object at \$\.message\.content\[0\]\.content\[0\]\.source, got int '3'",
        ),
    ],
)
def test_a_bad_field_of_a_session_leaves_its_other_lines_alone(
    line: int, content: Any, words: str, tmp_path: Path
) -> None:
    """The line and the field are named; what hangs on the line is not lost with it."""
    lines = session()
    lines[line]["message"]["content"] = content
    error, run, agent = read_recordings(write(tmp_path / "s.jsonl", *lines))
    assert isinstance(error, RecordingError)
    with pytest.raises(RecordingError, match=words):
        raise error
    assert isinstance(run, RecordedRun)
    assert isinstance(agent, RecordedRun)
    assert run.task == TASK
    assert len(run.turns) == 3 if line == 9 else 2


def test_an_answer_without_a_usable_id_is_named(tmp_path: Path) -> None:
    """And left out."""
    lines = session()
    lines[-1]["message"]["id"] = {"a": 1}
    error, run, _ = read_recordings(write(tmp_path / "s.jsonl", *lines))
    assert "line 18: expected text at $.message.id, got dict" in str(error)
    assert isinstance(run, RecordedRun)
    assert len(run.turns) == 2


def test_what_is_no_count_was_not_billed(tmp_path: Path) -> None:
    """Fewer tokens than none, words, true: nobody knows; a count beside them still counts."""
    answers = [{"input_tokens": -5, "output_tokens": True}, {"input_tokens": "x", "output_tokens": 7}]
    lines = [event("u1", None, "user", "Begin.")]
    lines += [
        event(f"a{n}", f"u{n}", "assistant", "So.", message={"usage": usage}) for n, usage in enumerate(answers, 1)
    ]
    lines.insert(2, event("u2", "a1", "user", "On."))
    [run] = read(write(tmp_path / "s.jsonl", *lines))
    assert [turn.usage for turn in run.turns] == [None, Usage(0, 7)]
    meta = {"usage": [[-1, 2, 3, 4], [1, 2, False, 4]]}
    [run] = read(write(tmp_path / "one.jsonl", {"messages": MESSAGES, "meta": meta}))
    assert [turn.usage for turn in run.turns] == [None] * 3


# --- what does not fit ------------------------------------------------------------------------------------


def test_a_recording_is_made_to_fit_the_api(tmp_path: Path) -> None:
    """Ids and names of other providers, an id used twice, calls without results, results without calls."""
    use = {"type": "tool_use", "id": "a:1", "name": "db.query", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a:1", "content": "one"}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [use, {"type": "text", "text": " "}]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": [use, {**use, "id": "b"}]},
        {"role": "user", "content": [{**result, "content": ""}, {**result, "content": "late"}]},
        {"role": "assistant", "content": " "},
        {"role": "assistant", "content": "Part one."},
        {"role": "assistant", "content": "Part two."},
    ]
    [run] = read(write(tmp_path / "one.json", messages))
    first, second, last = run.turns
    assert first.content == (ToolUse("a_1", "db_query", {}),)
    assert first.results == {"a_1": ToolResult("a_1", "one")}
    assert [block.id for block in second.content if isinstance(block, ToolUse)] == ["a_1_2", "b"]
    assert second.results == {
        "a_1_2": ToolResult("a_1_2", "(no output)"),
        "b": ToolResult("b", NO_RESULT, is_error=True),
    }
    assert second.said == ("late",)
    assert last.content == (Text("Part one."), Text("Part two."))


def test_results_of_parallel_calls_with_one_id_keep_their_order(tmp_path: Path) -> None:
    """Calls without ids, or with the same one, are answered in the order in which they were made."""
    call = {"type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "tool_calls": [call, call]},
        *({"role": "tool", "name": "read", "content": words} for words in ("one", "two", "three")),
        {"role": "assistant", "content": "Done."},
    ]
    [run] = read(write(tmp_path / "one.json", messages))
    assert shape(run)[0][1:] == ({"read": "one", "read_2": "two"}, ("three",))


def test_any_number_of_turns_may_share_a_call_id() -> None:
    """A server may number those of each turn anew. To look through all earlier ones would take hours for this."""
    begun = RecordedMessage(Message("user", (Text("Go."),)))
    turn = [
        RecordedMessage(Message("assistant", (ToolUse("call_0", "read", {}),))),
        RecordedMessage(Message("user", (ToolResult("call_0", "one"),))),
    ]
    run = record_run([begun, *turn * 50_000], run_id="run", file="file")
    assert run is not None
    assert run.turns[-1].results == {"call_0_50000": ToolResult("call_0_50000", "one")}


def test_a_sub_agent_without_a_name_may_have_any_number_of_lines() -> None:
    """Its lines are known by the first of them. To go up to that from each line would take an hour for this."""
    sub_agent = Session(file="file", name="session")
    for number in range(50_000):
        role = "assistant" if number % 2 else "user"
        line = {"type": role, "uuid": f"u{number}", "parentUuid": f"u{number - 1}", "isSidechain": True}
        sub_agent.add({**line, "message": {"role": role, "content": f"word {number}"}}, where="line")
    (run,) = sub_agent.runs()
    assert (run.id, len(run.turns)) == ("session/u0", 25_000)


def test_pictures_and_unknown_blocks_survive(tmp_path: Path) -> None:
    """A picture in a result stays one; in a user's words it is named; a block of a new type goes along."""
    picture = {"type": "image", "source": {"type": "url", "url": "u"}}
    server = {"type": "server_tool_use", "id": "s", "name": "web", "input": {}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "See\0"}, picture]},
        {"role": "assistant", "content": [server, {"type": "tool_use", "id": "a", "name": "t", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [picture, {"type": "text", "text": " "}]},
            ],
        },
        {"role": "assistant", "content": "Seen."},
    ]
    [run] = read(write(tmp_path / "one.json", messages))
    assert run.task == "See\ufffd\n\n[image]"
    assert run.turns[0].content[0] == RawBlock(server)
    assert run.turns[0].results["a"].content == (Image({"type": "url", "url": "u"}),)


def test_what_a_user_sent_is_said_whatever_it_is(tmp_path: Path) -> None:
    """Results of calls from before the recording, also an empty one; the text of a document; else the block's type."""
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "tide_4242"}}
    late = {"type": "tool_result", "tool_use_id": "z"}
    messages = [
        {"role": "user", "content": [{**late, "content": "error 40417"}, {"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "content": "Go on."},
        {"role": "user", "content": [{**late, "content": " "}, document]},
        {"role": "assistant", "content": "Done."},
    ]
    [run] = read(write(tmp_path / "one.json", messages))
    assert (run.task, run.turns[0].said) == ("error 40417\n\n[image_url]", ("[tool_result]", "tide_4242"))


def test_calls_of_the_oldest_chat_shape_are_read(tmp_path: Path) -> None:
    """One function call a turn, without ids; arguments that are no JSON are kept as they are."""
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{broken"}},
        {"role": "function", "name": "f", "content": "done"},
        {"role": "assistant", "content": "Done."},
    ]
    [run] = read(write(tmp_path / "one.json", messages))
    assert shape(run)[0] == ((ToolUse("f", "f", {"arguments": "{broken"}),), {"f": "done"}, ())


@pytest.mark.parametrize("said", [{"content": [{"type": "refusal", "refusal": "No."}]}, {"refusal": "No."}], ids=str)
def test_a_refusal_is_what_the_model_said(said: dict[str, Any], tmp_path: Path) -> None:
    """OpenAI's API returns it beside an empty content, and takes it as a part too."""
    answer = {"role": "assistant", "content": None, **said}
    [run] = read(write(tmp_path / "one.json", [{"role": "user", "content": "Go."}, answer]))
    assert run.turns[0].content == (Text("No."),)


def test_calls_of_tools_that_take_text_are_read(tmp_path: Path) -> None:
    """OpenAI's custom tools: the text is their one argument."""
    custom = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin Patch"}}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [custom]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "assistant", "content": "Done."},
    ]
    [run] = read(write(tmp_path / "one.json", messages))
    assert shape(run)[0] == ((ToolUse("c1", "patch", {"input": "*** Begin Patch"}),), {"c1": "done"}, ())


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    """Some recorders cut text in the middle of a pair; a whole pair stays what it is."""
    path = tmp_path / "one.json"
    path.write_text(
        r'[{"role": "user", "content": "a\ud83d b\ude00 c\ud83d\ude00 d"}, {"role": "assistant", "content": '
        r'[{"type": "tool_use", "id": "c", "name": "read", "input": {"path\ud83d": "\ude00"}}]}]',
        encoding="utf-8",
    )
    [run] = read(path)
    assert run.task == "a\ufffd b\ufffd c\U0001f600 d"
    assert run.turns[0].content == (ToolUse("c", "read", {"path\ufffd": "\ufffd"}),)


@pytest.mark.parametrize("lines", [0.0, 0.01, 0.5, 1.5, 2.99])
def test_a_gzipped_file_that_was_cut_off_is_read_as_far_as_it_goes(lines: float, tmp_path: Path) -> None:
    """In the checksum, or in the middle of a line: the runs before that, and one problem, which says so."""
    line = json.dumps({"id": "a", "messages": MESSAGES}).encode() + b"\n"
    path = tmp_path / "set.jsonl.gz"
    path.write_bytes(gzip.compress(line * 3, compresslevel=0)[: -4 - int(lines * len(line))])
    *found, error = read_recordings(path)
    assert [shape(run) for run in found if isinstance(run, RecordedRun)] == [EXPECTED] * int(3 - lines)
    assert len(found) == int(3 - lines)
    assert str(error) == f"{path}: expected gzipped data with its end, got a file that was cut off"


def test_a_document_that_is_whole_is_read_though_its_checksum_is_cut_off(tmp_path: Path) -> None:
    """No line end says that it is whole, but that it is JSON does."""
    path = tmp_path / "one.json.gz"
    path.write_bytes(gzip.compress(json.dumps(MESSAGES).encode())[:-4])
    run, error = read_recordings(path)
    assert isinstance(run, RecordedRun)
    assert (shape(run), "cut off" in str(error)) == (EXPECTED, True)


def test_gzipped_files_behind_one_another_are_read_as_one(tmp_path: Path) -> None:
    """As gzip itself does."""
    path = write(tmp_path / "set.jsonl.gz", MESSAGES, packed=True)
    path.write_bytes(path.read_bytes() * 2 + b"\0\0")
    assert [run.id for run in read(path)] == ["set:1", "set:2"]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
NAMES = st.sampled_from(["type", "role", "content", "text", "id", "name", "input", "x"])
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3))


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each value within a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, part in inner for place in places(part, (*here, key)))]


@given(
    name=st.sampled_from(list(FORMATS)),
    place=st.integers(0, 10_000),
    put=ANYTHING | st.sampled_from(["0001-01-01T00:00:00", [{"type": "text", "text": 5}], [{}]]),
)
def test_anything_anywhere_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, place: int, put: Any
) -> None:
    """One field of any format holds whatever JSON can say: what can be searched comes out, or an error that says so."""
    documents = json.loads(json.dumps(FORMATS[name]))
    every = places(documents)[1:]
    *way, last = every[place % len(every)]
    target = documents
    for step in way:
        target = target[step]
    target[last] = put
    found = list(read_recordings(write(tmp_path_factory.getbasetemp() / "any.jsonl", *documents)))
    for run in found:
        assert isinstance(run, RecordingError) or needs_of(run) is not None


BROKEN: list[tuple[Any, str]] = [
    (7, r"expected a list of messages, or an object with one under 'messages' at \$, got int '7'"),
    ({"messages": "x"}, r"expected a list of messages"),
    ([3], r"expected a message with a role at \$\[0\], got int '3'"),
    ({"messages": [{"role": "bot"}]}, r"expected user, assistant, .* at \$\.messages\[0\]\.role, got str 'bot'"),
    ([{"role": "user", "content": 5}], r"expected text or a list of blocks at \$\[0\]\.content"),
    (
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{}]}]}],
        r"expected a block with a type at \$\[0\]\.content\[0\]\.content\[0\]",
    ),
    ([{"role": "user", "content": [{}]}], r"expected a block with a type at \$\[0\]\.content\[0\]"),
    (
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}],
        r"expected text at \$\[0\]\.content\[0\]\.name",
    ),
    (
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "n", "input": 1}]}],
        r"expected an object at \$\[0\]\.content\[0\]\.input, got int '1'",
    ),
    ([{"role": "assistant", "tool_calls": [{}]}], r"a call with a function and its name at \$\[0\]\.tool_calls\[0\]"),
    ([{"role": "assistant", "tool_calls": 4}], r"expected a list of calls"),
    ([{"role": "user", "content": "alone"}], r"expected a message of the assistant, in the format of .* got none"),
    ({"type": "user", "message": "x"}, r"expected a message with a role at \$\.message"),
    ({"type": "summary", "summary": "x"}, r"expected a message of the assistant, in the format of .* got none"),
]


@pytest.mark.parametrize(("document", "words"), BROKEN, ids=lambda value: None)
def test_what_is_no_recording_is_refused_in_one_line(document: Any, words: str, tmp_path: Path) -> None:
    """The message says where, what was expected and what came."""
    [error] = read_recordings(write(tmp_path / "bad.json", document))
    assert isinstance(error, RecordingError)
    assert str(error).startswith(str(tmp_path / "bad.json"))
    assert "\n" not in str(error)
    with pytest.raises(RecordingError, match=words):
        raise error


def test_a_broken_line_leaves_the_others_alone(tmp_path: Path) -> None:
    """Two runs and two problems, each with its line."""
    path = tmp_path / "set.jsonl"
    good = json.dumps(MESSAGES)
    path.write_text(f"{good}\n{{half\n\n[1]\n{good}\n", encoding="utf-8")
    found = list(read_recordings(path))
    assert [shape(run) for run in found if isinstance(run, RecordedRun)] == [EXPECTED, EXPECTED]
    lines = [str(error).split(": ")[1] for error in found if isinstance(error, RecordingError)]
    assert lines == ["line 2", "line 4"]


def test_problems_come_in_the_order_of_their_lines(tmp_path: Path) -> None:
    """Whatever is wrong with each: no JSON, no message, no event of a session that can be read."""
    path = tmp_path / "set.jsonl"
    event_line = json.dumps(event("u", None, "user", 7))
    path.write_text("\n".join(["{half", "[1]", event_line, "{half", "[2]", json.dumps(MESSAGES)]), encoding="utf-8")
    errors = [str(error) for error in read_recordings(path) if isinstance(error, RecordingError)]
    assert [error.split(": ")[1] for error in errors] == [f"line {number}" for number in range(1, 6)]


def test_a_session_whose_last_line_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    """As a process leaves it that was killed while writing."""
    path = write(tmp_path / "s.jsonl", *session())
    path.write_bytes(path.read_bytes()[:-20])
    found = list(read_recordings(path))
    assert [len(run.turns) for run in found if isinstance(run, RecordedRun)] == [2, 1]
    [error] = [error for error in found if isinstance(error, RecordingError)]
    assert "line 18: it is not JSON" in str(error)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "expected recorded runs, got an empty file"),
        (b"no json", "it is not JSON: invalid character"),
        (b"{\n  no json\n}\n", "line 1: it is not JSON"),
        (b"\xff\n\xff", "line 1: it is not JSON"),
        (b"no json\n7\nno json\n", "line 1: it is not JSON"),
        (b"SQLite format 3\0\n7\n{}\n", "expected JSON or JSONL, got an SQLite database"),
        (gzip.compress(b"[7, 8")[:-9], "expected gzipped data with its end, got a file that was cut off"),
        (gzip.compress(b"[]")[:-8] + b"12345678", "expected a readable file of recorded runs, got: Error -3"),
        (b"[" * 100_000, "it is nested too deep"),
        (b'["\\ud800", ' + b"[" * 100_000, "it is n"),
        (None, "got: No such file or directory"),
    ],
    ids=[
        "empty",
        "not JSON",
        "broken document",
        "not text",
        "a number among its lines",
        "database",
        "cut gzip",
        "changed gzip",
        "deep",
        "deep with half a character",
        "missing",
    ],
)
def test_a_file_that_cannot_be_read_is_one_problem(data: bytes | None, words: str, tmp_path: Path) -> None:
    """However many lines it has."""
    path = tmp_path / "bad"
    if data is not None:
        path.write_bytes(data)
    [error] = read_recordings(path)
    assert isinstance(error, RecordingError)
    assert words in str(error)
