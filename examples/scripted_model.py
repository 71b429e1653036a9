"""Test an agent without a real model: a script provides the model's answers, and the test checks its requests.

Run it with pytest, or as it is.
"""

import repertory as rp
from repertory.llm import text_of
from repertory.testing import ScriptedModel, call


@rp.tool(effect="pure")
def look_up(word: str) -> str:
    """Look a word up."""
    if word != "tide":
        raise rp.ToolRetry(f"there is no entry {word!r}; entries are singular")
    return "tide: the rise and fall of the sea"


agent = rp.Agent("librarian", instructions="Explain words.", tools=[look_up])


def test_a_wrong_argument_is_told_to_the_model() -> None:
    """The agent gets a second chance, because the tool says how to call it."""
    model = ScriptedModel([call("look_up", word="tides"), call("look_up", word="tide"), "The sea, rising and falling."])
    assert rp.run_sync(agent, "What are tides?", model=model) == "The sea, rising and falling."
    model.assert_complete()
    assert "entries are singular" in text_of(model.requests[1].messages[-1].content)
    assert "rise and fall" in text_of(model.requests[2].messages[-1].content)


def test_the_tool_alone() -> None:
    """A tool can be called the way an agent calls it, or as a plain function."""

    async def main() -> rp.ToolOutput:
        return await rp.call_tool(look_up, {"word": "tide"})

    assert rp.run(main).text == look_up("tide")


if __name__ == "__main__":
    test_a_wrong_argument_is_told_to_the_model()
    test_the_tool_alone()
    print("both hold")
