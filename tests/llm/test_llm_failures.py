"""What went wrong, in our words: one error per cause, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.errors import (
    MediaUnreadable,
    ModelAuthenticationError,
    ModelError,
    ModelRequestRejected,
    ModelUnavailable,
    PromptTooLong,
    ThinkingMismatch,
    UnknownModel,
)
from repertory.llm import _failures
from repertory.llm._failures import Place

PLACE = Place("http://localhost:11434", "qwen3", local=True, secrets=("top-secret-key",))


def said(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """An error body of the Messages API."""
    return {"type": "error", "error": {"type": kind, "message": message}}


OVERFLOWS: dict[str, Any] = {
    "Bedrock": {"message": "Input is too long for requested model."},
    "Gemini": said("The input token count (9000) exceeds the maximum number of tokens allowed (8000)."),
    "xAI": said("This model's maximum prompt length is 8000 but the request contains 9000 tokens."),
    "Groq": said("Please reduce the length of the messages or completion."),
    "Mistral": said("Prompt contains 9000 tokens, too large for model with 8000 maximum context length"),
    "Moonshot": said("Invalid request: Your request exceeded model token limit: 8000 (requested: 9000)"),
    "Qwen": said("Range of input length should be [1, 8000]"),
    "MiniMax": said("invalid params, context window exceeds limit (2013)"),
    "Z.ai": said("Prompt exceeds max length"),
    "Copilot": said("prompt token count of 9000 exceeds the limit of 8000"),
    "Poolside": said("Input length 9000 exceeds the maximum allowed input length of 8000 tokens."),
    "OpenAI": {"error": {"message": "Too much.", "type": "invalid_request_error", "code": "context_length_exceeded"}},
    "LiteLLM": {"error": {"message": "litellm.ContextWindowExceededError: litellm.BadRequestError", "code": "400"}},
    "LM Studio": {"error": "The model is loaded with context length of only 8000 tokens, which is not enough. Try to "
                  "load the model with a larger context length"},
    "Ollama": said("prompt too long; exceeded max context length by 1000 tokens"),
    "vLLM": said("max_tokens=8192 cannot be greater than max_model_len=max_total_tokens=6000."),
    "a gateway": said("Request size exceeds model context window"),
    "Anthropic, of images": said("too many images and documents: 120 + 0 > 100"),
    "Anthropic, of pages": said("Too much media: 70 document pages + 37 images > 100"),
    "Anthropic, of sides": said("the image dimensions exceed max allowed size for many-image requests: 2000 pixels"),
    "vLLM, of images": said("At most 4 image(s) may be provided in one prompt."),
}  # fmt: skip


@pytest.mark.parametrize("body", OVERFLOWS.values(), ids=OVERFLOWS)
def test_a_prompt_beyond_the_window_is_recognized_in_the_words_of_many_servers(body: Any) -> None:
    """Else the run would end where a smaller prompt would be answered."""
    error = _failures.from_status(PLACE, 400, body, {}).error
    assert isinstance(error, PromptTooLong)
    assert error.media == any(word in str(body) for word in ("image", "media", "PDF"))


@pytest.mark.parametrize(
    "words",
    [
        "This request would exceed your organization's rate limit of 30,000 input tokens per minute",
        "Too many tokens, please wait before trying again.",
        "max_tokens: 64000 > 32000, which is the maximum allowed number of output tokens for this model",
        "messages.3.content.0.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
        "messages.3.content.0.image.source: At least one of the image dimensions exceed max allowed size: 8000 pixels",
        "messages.1.content.0.tool_use.id: String should have at most 64 characters",
    ],
)
def test_other_things_that_are_too_long_or_too_many_are_not_taken_for_the_prompt(words: str) -> None:
    """A smaller prompt would not help."""
    assert not isinstance(_failures.from_status(PLACE, 400, said(words), {}).error, PromptTooLong)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"Message": "Unknown field betas"}, "Unknown field betas"),
        ({"errors": [{"code": 7003, "message": "Could not route"}], "success": False}, "Could not route"),
        ({"code": 1211, "msg": "model not exist"}, "model not exist"),
        ({"error": {"error": {"message": "no such field"}}}, "no such field"),
        ({"error": {"code": 400, "message": "no", "type": "t", "n_ctx": 8192}}, "no [code 400, t, n_ctx 8192]"),
        ({}, "no explanation"),
    ],
)
def test_what_a_server_says_is_named_wherever_it_says_it(body: Any, words: str) -> None:
    """Gateways have fields of their own, and some say the most telling thing beside their message."""
    assert words in str(_failures.from_status(PLACE, 400, body, {}).error)


@pytest.mark.parametrize(
    ("status", "body", "error", "passing", "todo"),
    [
        (
            401,
            said("invalid x-api-key", "authentication_error"),
            ModelAuthenticationError,
            False,
            "set ANTHROPIC_API_KEY",
        ),
        (402, said("no credit", "billing_error"), ModelAuthenticationError, False, "billing"),
        (
            400,
            said("Your credit balance is too low to access the Anthropic API."),
            ModelAuthenticationError,
            False,
            "billing",
        ),
        (
            400,
            said("You have reached your specified workspace API usage limits. You will regain access on 2026-12-01."),
            ModelAuthenticationError,
            False,
            "billing",
        ),
        (
            429,
            {"error": {"message": "no", "details": {"error_code": "contract_spend_limit_reached"}}},
            ModelAuthenticationError,
            False,
            "error_code contract_spend_limit_reached",
        ),
        (403, said("no", "permission_error"), ModelAuthenticationError, False, "may not use model 'qwen3'"),
        (404, said("model: qwen3", "not_found_error"), UnknownModel, False, "without /v1"),
        (404, "404 page not found", UnknownModel, False, "without /v1"),
        (413, "too large", PromptTooLong, False, "smaller"),
        (400, said("prompt is too long: 210000 tokens > 200000 maximum"), PromptTooLong, False, "smaller"),
        (400, said("input length and `max_tokens` exceed context limit: 1 + 2 > 2"), PromptTooLong, False, "smaller"),
        (
            400,
            {"error": {"code": 400, "type": "exceed_context_size_error", "message": "try increasing the context size"}},
            PromptTooLong,
            False,
            "smaller",
        ),
        (
            400,
            {"error": {"message": "request (4390 tokens) exceeds the available context size"}},
            PromptTooLong,
            False,
            "",
        ),
        (
            500,
            {"error": {"message": "Context size has been exceeded.", "type": "server_error"}},
            PromptTooLong,
            False,
            "",
        ),
        (400, {"detail": "This model's maximum context length is 4096 tokens."}, PromptTooLong, False, ""),
        (
            400,
            "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
            PromptTooLong,
            False,
            "",
        ),
        (
            400,
            said(
                "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different "
                "conversation."
            ),
            ThinkingMismatch,
            False,
            "unchanged",
        ),
        (
            400,
            said("`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."),
            ThinkingMismatch,
            False,
            "",
        ),
        (400, said("messages.2.content.0.image.source: Could not process image"), MediaUnreadable, False, "without"),
        (400, said("messages.2.content.0.pdf.source: The PDF specified was not valid."), MediaUnreadable, False, ""),
        (400, said("The PDF specified is password protected."), MediaUnreadable, False, ""),
        (
            400,
            said("messages.2.content.0.tool_result.content.0.image.source.base64: invalid base64 data"),
            MediaUnreadable,
            False,
            "",
        ),
        (
            400,
            said(
                "messages.6.content.5.image.source.base64.data: Image does not match the provided media type image/png"
            ),
            MediaUnreadable,
            False,
            "",
        ),
        (400, said("messages.2.content.4.image.source.base64: image cannot be empty"), MediaUnreadable, False, ""),
        (400, "cannot identify image file <_io.BytesIO object at 0x7f>", MediaUnreadable, False, ""),
        (500, "Failed to load image or audio file", MediaUnreadable, False, ""),
        (400, said("messages.0: all messages must have non-empty content"), ModelRequestRejected, False, "non-empty"),
        (422, said("max_tokens: Field required"), ModelRequestRejected, False, "max_tokens"),
        (408, None, ModelUnavailable, True, ""),
        (409, None, ModelUnavailable, True, ""),
        (429, said("slow down", "rate_limit_error"), ModelUnavailable, True, "rate limit"),
        (500, said("oops", "api_error"), ModelUnavailable, True, "server failed"),
        (501, None, ModelUnavailable, False, ""),
        (503, "<html>bad gateway</html>", ModelUnavailable, True, ""),
        (529, said("Overloaded", "overloaded_error"), ModelUnavailable, True, "overloaded"),
    ],
)
def test_every_status_means_one_error(
    status: int, body: Any, error: type[ModelError], passing: bool, todo: str
) -> None:
    """The whole matrix: which error, whether another attempt may help, and what the message advises."""
    failure = _failures.from_status(PLACE, status, body, {})
    assert type(failure.error) is error
    assert failure.passing is passing
    assert todo in str(failure.error)
    assert "http://localhost:11434" in str(failure.error)


def test_a_server_may_say_itself_whether_to_try_again() -> None:
    """The header wins over the status, as in the provider's own SDK."""
    assert not _failures.from_status(PLACE, 529, None, {"x-should-retry": "false"}).passing
    assert _failures.from_status(PLACE, 400, None, {"x-should-retry": "true"}).passing
    assert _failures.from_status(PLACE, 429, None, {"retry-after": "3"}).asked == 3.0


def test_a_key_that_a_server_echoes_is_not_passed_on() -> None:
    """Neither our own key nor anything that looks like one stands in a message."""
    body = said("invalid key top-secret-key, or was it sk-ant-api03-abcdefghijk?", "authentication_error")
    failure = _failures.from_status(PLACE, 401, body, {})
    assert "top-secret-key" not in str(failure.error)
    assert "sk-ant" not in str(failure.error)
    assert str(failure.error).count("***") == 2
    for other in (
        _failures.unreachable(PLACE, OSError("top-secret-key")),
        _failures.unreadable(PLACE, "top-secret-key"),
    ):
        assert "top-secret-key" not in str(other.error)


def test_an_error_after_the_status_of_a_success_means_the_same_as_with_its_own() -> None:
    """By its type, since it has no status; an unknown one is the server's failure."""
    assert _failures.from_body(PLACE, said("Overloaded", "overloaded_error")).passing
    assert isinstance(_failures.from_body(PLACE, said("no", "permission_error")).error, ModelAuthenticationError)
    assert _failures.from_body(PLACE, said("changed meanwhile", "conflict_error")).passing
    assert isinstance(_failures.from_body(PLACE, {"error": {"message": "x", "code": 400}}).error, ModelRequestRejected)
    for unknown in ({"type": "error"}, said("new", "moon_phase_error"), {"error": {"message": "x", "code": 7}}):
        failure = _failures.from_body(PLACE, unknown)
        assert failure.passing
        assert "answered with an error: " in str(failure.error)


def test_a_wrong_path_is_one_also_with_the_status_of_a_success() -> None:
    """LM Studio answers so; asking again would not help."""
    failure = _failures.from_body(PLACE, {"error": "Unexpected endpoint or method. (POST /v1/v1/messages)"})
    assert isinstance(failure.error, UnknownModel)
    assert "without /v1" in str(failure.error)
    assert not failure.passing


def test_a_broken_connection_tells_its_root_cause() -> None:
    """SDK and HTTP client wrap the error that says something in several that do not."""
    outer = RuntimeError("Connection error.")
    outer.__cause__ = ConnectionRefusedError(111, "Connection refused")
    local = _failures.unreachable(PLACE, outer)
    assert "Connection refused" in str(local.error)
    assert "is the server running?" in str(local.error)
    remote = _failures.unreachable(Place("https://api.anthropic.com", "m", local=False), TimeoutError())
    assert "check the network" in str(remote.error)


def test_an_error_body_may_have_any_shape() -> None:
    """What should be words and is not is shown in short, however deep or long it is."""
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    for odd in (7, None, True, [1], {"a": 1}, deep, "x" * 10**6, 10**5000):
        for body in (odd, {"error": odd}, said(odd, odd), {"detail": odd}):  # type: ignore[arg-type]
            failure = _failures.from_body(PLACE, body)
            assert len(str(failure.error)) < 2_500


def test_a_long_page_instead_of_an_error_is_cut() -> None:
    """A proxy's HTML page does not flood the message."""
    assert len(str(_failures.from_status(PLACE, 502, "<p>" * 10_000, {}).error)) < 600
