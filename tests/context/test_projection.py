"""Projection: order, legality of odd records, breakpoints, and the journal's short form."""

from __future__ import annotations

import msgspec

from context_histories import PICTURE, Story, long_story, planned, profile
from repertory._json_text import canonical_json
from repertory.context import EMPTY, ContextPolicy, Decision, Projector, apply, project
from repertory.context.plan import CoverRange
from repertory.llm.messages import RedactedThinking, Text, Thinking, ToolResult, text_of
from repertory.llm.model import Breakpoint, ToolSchema, encode_request
from repertory.llm.profiles import CacheRules
from repertory.llm.validation import validate
from repertory.record.records import ModelCalled
from repertory.record.requests import RecordedRequest, RequestRecorder, sent_body

TOOL = ToolSchema("read", "Read a file.", {"type": "object"})
MODEL = profile()


def test_neighbours_of_one_role_are_one_message_with_results_first() -> None:
    """A user who speaks while tools run stands after the results, as the API demands."""
    story = Story()
    story.turn("one", "two", between="and hurry")
    story.say("really")
    request = project(story.snapshot(), profile=MODEL)
    validate(request)
    assert [m.role for m in request.messages] == ["user", "assistant", "user"]
    last = request.messages[-1].content
    assert [type(block) for block in last] == [ToolResult, ToolResult, Text, Text]
    assert [block.text for block in last[2:] if isinstance(block, Text)] == ["and hurry", "really"]


def test_what_the_api_refuses_in_a_record_is_left_out() -> None:
    """Blank texts, empty turns, trailing thinking, pictures in an error: each becomes legal, nothing else changes."""
    story = Story()
    story.turn((Text("  "), PICTURE), text=" ", errors=[0])
    story.iteration += 1
    story.add("assistant", "assistant", Text(""))
    story.add("user", "user-input", Text(" "))
    story.add("user", "user-input", Text("go on"))
    story.add("assistant", "assistant", Text("well"), Thinking("cut off", "s"), RedactedThinking("x"))
    story.say("yes")
    request = project(story.snapshot(), profile=MODEL)
    validate(request)
    assert request.messages[1].content == (story.entries[1].content[1],)
    assert request.messages[2].content == (
        ToolResult("call_1", (Text("[image]"),), is_error=True),
        Text("go on"),
    )
    assert request.messages[3].content == (Text("well"),)


def test_what_has_no_bytes_is_replaced_in_the_request_and_kept_in_the_record() -> None:
    """A lone surrogate in a task, an answer, a call's arguments, a result or a digest makes no request unsendable."""
    story = Story("task \ud800")
    story.turn("fine", (Text("part \udfff"), PICTURE), text="said \udc00", arguments={"a \ud800": ["x \ud801", 1]})
    story.say("user \ud800 é")
    plan = apply(EMPTY, cover(0, 0, 4, 1))
    for shown in (EMPTY, plan):
        request = project(story.snapshot(), shown, profile=MODEL)
        validate(request)
        body = msgspec.json.encode(encode_request(request)).decode()
        for words in ("task \ufffd", "said \ufffd", "x \ufffd", "part \ufffd", "user \ufffd é"):
            assert words in body
    assert text_of(story.entries[0].content) == "task \ud800"


def test_the_same_block_objects_go_through_untouched() -> None:
    """What needs no change is not copied, so nothing can change it."""
    story = long_story(2)
    request = project(story.snapshot(), profile=MODEL)
    assert request.messages[1].content[1] is story.entries[1].content[1]


def cover(first: int, last: int, position: int, edge: int) -> Decision:
    """A decision that covers a range."""
    edit = CoverRange(
        first=first, last=last, content=(Text(f"sum {last}"),), tokens=5, was_tokens=9, kept=(0,) if not first else ()
    )
    return Decision(kind="pays", reason="test", iteration=1, position=position, edge=edge, edits=(edit,))


def test_breakpoints_stand_at_the_head_the_edge_and_the_end() -> None:
    """On an epoch's first request the edge before it is marked too, since the cache still holds that prefix."""
    story = long_story(12)
    snapshot = story.snapshot()
    plain = project(snapshot, profile=MODEL, tools=[TOOL])
    assert plain.breakpoints == (Breakpoint(None), Breakpoint(24))
    plan = apply(apply(EMPTY, cover(0, 4, 7, 7)), cover(5, 8, len(snapshot), 13))
    first = project(snapshot, plan, profile=MODEL, tools=[TOOL])
    assert [p.message for p in first.breakpoints] == [None, 2, 8, 20]
    story.turn("more")
    second = project(story.snapshot(), plan, profile=MODEL, tools=[TOOL])
    assert [p.message for p in second.breakpoints] == [None, 8, 22]


def test_a_turn_with_many_calls_marks_the_message_before_it() -> None:
    """More blocks than a lookup goes back: without a second marker the last request's entry would be missed."""
    story = Story()
    story.turn("a")
    story.turn(*["x"] * 12)
    request = project(story.snapshot(), profile=MODEL)
    assert [p.message for p in request.breakpoints] == [2, 4]
    few = msgspec.structs.replace(MODEL, cache=CacheRules(breakpoints=1))
    assert [p.message for p in project(story.snapshot(), profile=few).breakpoints] == [4]


def test_no_cache_no_breakpoints() -> None:
    """A model without a prompt cache is sent no markers, and an empty record none either."""
    story = long_story(3)
    assert project(story.snapshot(), profile=profile(cache=False)).breakpoints == ()
    assert project(story.snapshot(0), profile=MODEL).messages == ()


def test_options_and_betas_go_along() -> None:
    """Whatever the caller adds to the request is in it."""
    request = project(
        Story().snapshot(),
        profile=MODEL,
        options={"temperature": 0.0},
        betas=["x-1"],
        max_tokens=77,
        system=[Text("S")],
    )
    assert (request.options, request.betas, request.max_tokens, request.model) == (
        {"temperature": 0.0},
        ("x-1",),
        77,
        "test-model",
    )


def test_a_recorded_request_repeats_nothing_and_loses_nothing() -> None:
    """Each record holds only new messages; with its markers put back it is the request that was sent."""
    story = long_story(10)
    recorder = RequestRecorder()
    projector = Projector(profile=MODEL, system=[Text("S")], tools=[TOOL], options={"thinking": {"type": "disabled"}})
    calls: dict[int, ModelCalled] = {}
    for call, (snapshot, outcome) in enumerate(planned(story, ContextPolicy(), MODEL), 1):
        request = projector.project(snapshot, outcome.plan)
        record = recorder.record(
            request, snapshot, run_id="r", call=call, iteration=call, position=len(snapshot), at=1.0
        )
        calls[call] = record
        assert record.base_call == (call - 1 or None)
        assert len(record.body["messages"]) <= 3
        body = sent_body(RecordedRequest([calls[number] for number in range(call, 0, -1)]).whole(snapshot))
        assert canonical_json(body) == canonical_json(encode_request(request))


def test_a_summary_that_is_added_is_recorded_without_those_before_it() -> None:
    """What an edit leaves alone is repeated neither by messages nor by the blocks of the one that it changed."""
    story = long_story(10)
    recorder = RequestRecorder()
    projector = Projector(profile=MODEL)
    plan = apply(EMPTY, cover(0, 6, 12, 0))
    calls = {}
    for call, position in enumerate((12, 20), 1):
        snapshot = story.snapshot(position)
        request = projector.project(snapshot, plan)
        calls[call] = recorder.record(request, snapshot, run_id="r", call=call, iteration=1, position=position, at=1.0)
        plan = apply(plan, cover(7, 14, 20, 7))
    assert (calls[2].shared_messages, calls[2].shared_blocks) == (3, 0)  # the task, the first stretch's call and text
    whole = RecordedRequest([calls[2], calls[1]]).whole(snapshot)["messages"]
    assert [message["role"] for message in whole[:5]] == ["user", "assistant", "user", "assistant", "user"]
    assert "sum 6" in str(whole[2])
    assert "sum 14" in str(whole[4])


def test_betas_are_recorded_but_are_no_field_of_the_body() -> None:
    """Headers are part of what was sent; they are kept apart from the body."""
    projector = Projector(profile=MODEL, betas=["compact-1"], tools=[TOOL])
    request = projector.project(Story().snapshot())
    record = RequestRecorder().record(request, (), run_id="r", call=1, iteration=1, position=1, at=1.0)
    assert record.body["betas"] == ["compact-1"]
    body = RecordedRequest([record]).whole(Story().snapshot())
    assert canonical_json(sent_body(body)) == canonical_json(encode_request(request))


def test_a_shorter_snapshot_starts_the_view_over() -> None:
    """A projector that is given an earlier record shows just that."""
    story = long_story(4)
    projector = Projector(profile=MODEL)
    projector.project(story.snapshot())
    assert projector.project(story.snapshot(3)) == project(story.snapshot(3), profile=MODEL)


def test_what_is_kept_under_a_cover_stands_in_its_own_role() -> None:
    """The agent's words are its own, a pinned result follows its call; reasoning is not shown."""
    story = Story()
    story.turn((Text("res"), PICTURE), thinking="hm")
    story.turn("two")
    decision = cover(0, 2, 5, 3)
    plan = apply(
        EMPTY, msgspec.structs.replace(decision, edits=(msgspec.structs.replace(decision.edits[0], kept=(0, 1, 2)),))
    )
    request = project(story.snapshot(), plan, profile=MODEL)
    validate(request)
    said = [(message.role, message.content) for message in request.messages[:3]]
    thought, words, call = story.entries[1].content
    assert said[0] == ("user", story.entries[0].content)
    assert said[1][0] == "assistant"
    assert said[1][1][:2] == (words, call)
    assert said[2][1][0] == story.entries[2].content[0]
    assert thought not in [block for message in request.messages for block in message.content]
