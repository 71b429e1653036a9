"""Explaining the errors of a tool that was written for another event loop than the one it runs on.

The errors themselves do not say so: asyncio under trio raises ``RuntimeError: no running event loop``, ``TypeError:
trio.run received unrecognized yield message``, and ``AttributeError`` when it takes None for its loop.
"""

from __future__ import annotations

import traceback

import sniffio

from repertory._error_texts import safe_str
from repertory.tools.threads import run_in_thread

_NO_LOOP = ("no running event loop", "no current event loop")  # raised by asyncio outside of its event loop
_YIELDED_TO_TRIO = "trio.run received unrecognized yield message"
_YIELDED_TO_ASYNCIO = "Task got bad yield"
_NO_TRIO = "must be called from async context"


def wrong_event_loop(tool: str, error: BaseException) -> tuple[str, str]:
    """Explain a tool's error if it was caused by the wrong event loop.

    Call this where the error is caught, in the program's own event loop.

    Returns:
        What the model is told, and what the developer is told in addition; both "" if it is another error.
    """
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    here, needs = sniffio.current_async_library(), _needed(error, modules[-1] if modules else "")
    if needs and run_in_thread.__module__ in modules:  # a plain function
        told = f"{tool} needs {needs}, and a plain function runs in a thread, where no event loop is"
        return told, f"make {tool} an async function, or call {needs}.run(…) in it"
    if needs in ("", here):
        return "", ""
    told = f"{tool} needs {needs}, and this program runs on {here}"
    return told, f'run the program with backend="{needs}", or write {tool} with anyio, which runs on both'


def _needed(error: BaseException, raised_in: str) -> str:
    """The library that the tool needs, judging by its error; "" if the error does not show one."""
    text = safe_str(error)
    match error:
        case RuntimeError() if any(words in text for words in _NO_LOOP):
            return "asyncio"
        case AttributeError() if "NoneType" in text and raised_in.startswith("asyncio."):
            return "asyncio"
        case TypeError() if text.startswith(_YIELDED_TO_TRIO):
            return "asyncio"
        case RuntimeError() if text == _NO_TRIO or text.startswith(_YIELDED_TO_ASYNCIO):
            return "trio"
        case _:
            return ""
