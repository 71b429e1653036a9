"""Which model a name stands for, and what is said where it stands for none."""

from __future__ import annotations

import pytest

from repertory.errors import ConfigurationError
from repertory.llm import AnthropicModel
from repertory.offline import OfflineModel
from repertory.runs import open_model

KEY = {"ANTHROPIC_API_KEY": "sk-ant-x"}
LOCAL = {"ANTHROPIC_BASE_URL": "http://localhost:11434"}


@pytest.mark.parametrize(
    ("name", "environment", "kind", "model"),
    [
        (None, {}, OfflineModel, "offline"),
        (None, {"ANTHROPIC_API_KEY": ""}, OfflineModel, "offline"),
        (None, KEY, AnthropicModel, "claude-sonnet-5-5"),
        (None, {"ANTHROPIC_AUTH_TOKEN": "t"}, AnthropicModel, "claude-sonnet-5-5"),
        (None, LOCAL, AnthropicModel, "claude-sonnet-5-5"),
        (None, {**LOCAL, "REPERTORY_MODEL": "qwen3:30b"}, AnthropicModel, "qwen3:30b"),
        (None, {**KEY, "REPERTORY_MODEL": "offline"}, OfflineModel, "offline"),
        (None, {**KEY, "ANTHROPIC_AUTH_TOKEN": "t"}, AnthropicModel, "claude-sonnet-5-5"),
        ("offline", KEY, OfflineModel, "offline"),
        ("claude-opus-5-5", {}, AnthropicModel, "claude-opus-5-5"),
        ("anthropic:claude-opus-5-5", KEY, AnthropicModel, "claude-opus-5-5"),
        ("anthropic/claude-opus-5-5", KEY, AnthropicModel, "claude-opus-5-5"),
        ("gpt-oss:20b", LOCAL, AnthropicModel, "gpt-oss:20b"),
    ],
)
def test_a_name_stands_for_a_model(
    name: str | None, environment: dict[str, str], kind: type[object], model: str
) -> None:
    """What is set decides where nothing is said; what is said decides where something is."""
    chosen = open_model(name, environment=environment)
    assert isinstance(chosen, kind)
    assert chosen.name == model


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "malformed model name ''"),
        ("two words", "malformed model name 'two words'"),
        ("x" * 300, "malformed"),
        ("openai:gpt-9", "unknown model"),
        ("gpt-9", "unknown model"),
        ("gemini-4", "unknown model"),
        ("ofline", "unknown model 'ofline'"),
        ("qwen3", "unknown model 'qwen3'"),
    ],
)
def test_a_name_that_cannot_be_meant_says_what_could(name: str, says: str) -> None:
    """The message lists what is possible, and what to set for it."""
    with pytest.raises(ConfigurationError) as caught:
        open_model(name, environment=KEY)
    assert says in str(caught.value)
    assert "'offline'" in str(caught.value)
    assert "ANTHROPIC_BASE_URL" in str(caught.value)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an environment of its own the process's is read."""
    for variable in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("REPERTORY_MODEL", "offline")
    assert isinstance(open_model(), OfflineModel)
