"""Webhooks: what may be one, how it is signed, and that whoever listens learns of every change of state."""

from __future__ import annotations

import base64

import msgspec
import pytest

from repertory.errors import ConfigurationError
from repertory.service.webhooks import Webhook, signature

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_signature_is_that_of_the_specification() -> None:
    """The example of the Standard Webhooks libraries."""
    secret = base64.b64decode(SECRET.removeprefix("whsec_"))
    made = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": "http://example.com/hook"}, "must be https"),
        ({"url": "http://127.0.0.1.example.com/"}, "must be https"),
        ({"url": "http://169.254.169.254/"}, "must be https"),
        ({"url": "ftp://example.com/"}, "must begin with http"),
        ({"url": "https:///x"}, "must begin with http"),
        ({"url": "https://[::1/"}, "must begin with http"),
        ({"url": "https://example.com:port/"}, "must begin with http"),
        ({"url": "https://bücher.example/"}, "must be of ASCII"),
        ({"url": "https://a..example/"}, "must begin with http"),
        ({"url": f"https://{'a' * 64}.example/"}, "must begin with http"),
        ({"url": "https://example.com/a b"}, "must be of ASCII"),
        ({"url": "http://localhost\t/"}, "must begin with http"),
        ({"url": "https://me:secret@example.com/"}, "the webhook at example.com has a password"),
        ({"on": ["finished"]}, "on names 'finished'; the states are"),
        ({"secret_env": ""}, "secret_env must name"),
    ],
)
def test_what_may_not_be_posted_to_is_refused(fields: dict[str, object], words: str) -> None:
    """With what is wrong and what would be right."""
    with pytest.raises((ConfigurationError, msgspec.ValidationError), match=words):
        Webhook(**{"url": "https://example.com/", "secret_env": "HOOK", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url", ["http://localhost:8000/x", "http://127.0.0.7/", "http://[::1]:80/", "https://a.b/?c=d"]
)
def test_this_machine_and_https_may_be_posted_to(url: str) -> None:
    """Also another machine without TLS, where that is allowed."""
    assert Webhook(url=url, secret_env="HOOK").url == url
    assert Webhook(url="http://example.com/", secret_env="HOOK", allow_http=True).on == ()


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_!!!", "c2hvcnQ=", "whsec_" + "A" * 100])
def test_a_secret_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is in the variable is not repeated."""
    monkeypatch.setenv("HOOK", text)
    with pytest.raises(ConfigurationError, match="HOOK") as caught:
        Webhook(url="https://example.com/", secret_env="HOOK").read_secret()
    assert not text or text not in str(caught.value) or text == "whsec_"


def test_the_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its prefix or without."""
    hook = Webhook(url="https://example.com/", secret_env="HOOK")
    for text in (SECRET, SECRET.removeprefix("whsec_")):
        monkeypatch.setenv("HOOK", text)
        assert len(hook.read_secret()) == 24
