"""Plain functions run in threads that can be left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio
import trio.testing

from patience import PATIENCE
from repertory.tools import ToolContext, call_tool, is_left_behind, tool
from repertory.tools.threads import MAX_THREADS, MOST_COMPUTING, run_in_thread


def test_a_plain_tool_that_blocks_for_ever_does_not_block_cancellation(run_async: Any) -> None:
    """The caller goes on at once; the thread learns that nobody waits for it."""

    async def main() -> None:
        started, noticed, release = threading.Event(), threading.Event(), threading.Event()

        def block() -> None:
            """Block."""
            started.set()
            release.wait()
            if is_left_behind():
                noticed.set()

        async with anyio.create_task_group() as group:
            group.start_soon(call_tool, tool(block, deadline=None))
            await anyio.to_thread.run_sync(started.wait)
            group.cancel_scope.cancel()
        assert not noticed.is_set()
        release.set()
        assert await anyio.to_thread.run_sync(lambda: noticed.wait(PATIENCE))

    run_async(main)


def test_a_plain_tool_does_not_wait_for_the_threads_of_others(run_async: Any) -> None:
    """Where all places of ``anyio.to_thread`` are taken, it runs, and so does what makes its long result ready."""

    async def main() -> None:
        release = threading.Event()

        def speak() -> str:
            """Speak."""
            return "word " * 300_000

        async with anyio.create_task_group() as group:
            limiter = anyio.to_thread.current_default_thread_limiter()
            for _ in range(int(limiter.total_tokens)):
                group.start_soon(anyio.to_thread.run_sync, release.wait)
            while limiter.available_tokens:
                await anyio.lowlevel.checkpoint()
            try:
                assert (await call_tool(tool(speak))).text.startswith("word")
            finally:
                release.set()

    run_async(main)


def test_a_plain_tool_that_blocks_for_ever_ends_at_its_deadline(run_async: Any) -> None:
    """The deadline holds for plain functions too."""

    async def main() -> None:
        release = threading.Event()

        def block() -> None:
            """Block."""
            release.wait()

        output = await call_tool(tool(block, deadline=0.02))
        release.set()
        assert output.status == "interrupted"

    run_async(main)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_plain_tool_that_blocks_for_ever_does_not_keep_the_process_alive(backend: str) -> None:
    """The interpreter exits while the function still blocks; anyio's own threads would hold it under asyncio."""
    program = """
import sys, threading, anyio
from repertory.tools import call_tool, tool

def block() -> None:
    "Block."
    threading.Event().wait()

async def main() -> None:
    print((await call_tool(tool(block, deadline=0.05))).status)

anyio.run(main, backend=sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", program, backend], capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, b"interrupted"), done.stderr


async def test_threads_are_bounded_and_given_back() -> None:
    """A function that is left behind keeps its place until it ends, so a broken tool cannot eat all threads."""
    release, running = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        running.release()
        release.wait()

    for _ in range(MAX_THREADS):  # more than may be at work: who is left behind makes room for the next
        async with anyio.create_task_group() as group:
            group.start_soon(run_in_thread, block)
            assert await anyio.to_thread.run_sync(lambda: running.acquire(timeout=PATIENCE))
            group.cancel_scope.cancel()
    with anyio.move_on_after(0.05) as scope:
        await run_in_thread(lambda: None)
    assert scope.cancelled_caught
    release.set()
    with anyio.fail_after(PATIENCE):
        assert await run_in_thread(lambda: 7) == 7


def test_of_tools_that_compute_about_as_many_run_as_there_are_cores(run_async: Any) -> None:
    """More would make the event loop slow and nothing faster. Those that wait are held up by none of it."""

    async def main() -> None:
        release, running = threading.Event(), threading.Semaphore(0)

        def block() -> None:
            """Block."""
            running.release()
            release.wait()

        async def count(expected: int) -> None:
            for _ in range(expected):
                assert await anyio.to_thread.run_sync(lambda: running.acquire(timeout=PATIENCE))
            await anyio.wait_all_tasks_blocked()
            assert not running.acquire(blocking=False)

        many = MOST_COMPUTING + 5
        async with anyio.create_task_group() as group:
            for _ in range(many):
                group.start_soon(call_tool, tool(block, computes=True))
            await count(MOST_COMPUTING)
            for _ in range(many):
                group.start_soon(call_tool, tool(block))
            await count(many)
            release.set()
        for _ in range(many - MOST_COMPUTING):
            assert running.acquire(blocking=False)

    run_async(main)


async def test_waiting_for_a_turn_is_not_the_tools_time(autojump_clock: trio.testing.MockClock) -> None:
    """A call that has not begun does not run out of time, and is not taken to have had an effect."""

    async def work() -> str:
        """Work."""
        await trio.sleep(8)
        return "done"

    outputs = []

    async def one() -> None:
        outputs.append(await call_tool(tool(work, computes=True, deadline=10)))

    async with trio.open_nursery() as nursery:
        for _ in range(2 * MOST_COMPUTING):
            nursery.start_soon(one)
    assert {(output.status, output.duration) for output in outputs} == {("ok", 8.0)}
    assert trio.current_time() == 16.0


async def test_a_plain_tool_knows_its_deadline() -> None:
    """``remaining`` asks the loop's clock from the thread."""

    def look(context: ToolContext) -> bool:
        """Look at the clock."""
        remaining = context.remaining()
        return remaining is not None and 0 < remaining <= 50

    assert (await call_tool(tool(look, deadline=50))).content == "true"


def test_nobody_is_left_behind_outside_a_thread() -> None:
    """Functions that ask can be called directly too."""
    assert not is_left_behind()


def test_what_a_plain_function_raises_arrives(run_async: Any) -> None:
    """Errors of any kind cross the thread; ``StopIteration`` cannot cross a coroutine and becomes a crash."""

    async def main() -> None:
        def leave() -> None:
            raise SystemExit(3)

        def stop() -> None:
            """Stop."""
            raise StopIteration

        with pytest.raises(SystemExit):
            await run_in_thread(leave)
        assert (await call_tool(tool(stop))).text.startswith("RuntimeError: ")

    run_async(main)
