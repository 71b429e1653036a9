"""What the caller is told when the journal fails: its own error, once, wherever it waits."""

from __future__ import annotations

import anyio
import pytest

import repertory as rp
from backends import RunAsync
from failing_journals import FailingJournal
from repertory.errors import JournalClosed, JournalWriteFailed
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel


class Scene:
    """Runs that are held in their model call until the journal has failed."""

    def __init__(self) -> None:
        self.journal = FailingJournal()
        self.go = anyio.Event()
        self.model = FunctionModel(self._answer)

    async def _answer(self, request: ModelRequest) -> str:
        await self.go.wait()
        return "Done."

    def fail(self) -> None:
        """Let the disk refuse, and the models answer."""
        self.journal.fail()
        self.go.set()


def test_a_journal_failure_comes_out_of_the_block_as_itself(run_async: RunAsync) -> None:
    """Three runs fail at once while the body waits for something else: one error, no group."""

    async def main() -> None:
        scene = Scene()
        with pytest.raises(JournalWriteFailed):
            async with rp.open_supervisor(journal=scene.journal, model=scene.model) as supervisor:
                for _ in range(3):
                    await supervisor.spawn(rp.Agent("a"), "Go.")
                scene.fail()
                await anyio.sleep_forever()

    run_async(main)


def test_a_journal_failure_comes_out_of_wait_result_as_itself(run_async: RunAsync) -> None:
    """Whoever waits for a run is told why there will be no result, and may handle it; the block ends with it, too."""

    async def main() -> None:
        scene, caught = Scene(), list[BaseException]()
        with pytest.raises(JournalWriteFailed):
            async with rp.open_supervisor(journal=scene.journal, model=scene.model) as supervisor:
                runs = [await supervisor.spawn(rp.Agent("a"), "Go.") for _ in range(3)]
                scene.fail()
                try:
                    await runs[1].wait_result()
                except JournalWriteFailed as error:
                    caught.append(error)
                    raise
        assert len(caught) == 1

    run_async(main)


@pytest.mark.parametrize("entry", ["spawn", "send", "resume", "summary"])
def test_every_entry_point_says_itself_that_the_journal_has_failed(run_async: RunAsync, entry: str) -> None:
    """No actor's crash stands in between."""

    async def main() -> None:
        scene = Scene()
        with pytest.raises((JournalWriteFailed, JournalClosed)):
            async with rp.open_supervisor(journal=scene.journal, model=scene.model) as supervisor:
                run = await supervisor.spawn(rp.Agent("a"), "Go.")
                if entry == "summary":
                    await scene.journal.aclose()
                    await run.summary()
                scene.journal.fail()
                if entry == "spawn":
                    await supervisor.spawn(rp.Agent("a"), "Go.")
                elif entry == "send":
                    await run.send("More.")
                else:
                    run.kill()
                    await anyio.sleep_forever()

    run_async(main)


def test_memory_says_itself_that_the_journal_has_failed(run_async: RunAsync) -> None:
    """Also to applications and tools that store something."""

    async def main() -> None:
        scene = Scene()
        with pytest.raises(JournalWriteFailed):
            async with rp.open_supervisor(journal=scene.journal, model=scene.model) as supervisor:
                run = await supervisor.spawn(rp.Agent("a"), "Go.")
                scene.journal.fail()
                for _ in range(3):
                    with pytest.raises(JournalWriteFailed):
                        await run.memory.store("something")
                scene.go.set()
                await run.wait_result()

    run_async(main)


def test_an_error_of_the_callers_own_beside_a_journal_failure_stays_in_the_group(run_async: RunAsync) -> None:
    """Neither hides the other."""

    async def main() -> None:
        scene = Scene()
        with pytest.raises(BaseExceptionGroup) as caught:
            async with rp.open_supervisor(journal=scene.journal, model=scene.model) as supervisor:
                run = await supervisor.spawn(rp.Agent("a"), "Go.")
                scene.fail()
                try:
                    await run.wait_result()
                except JournalWriteFailed:
                    raise ValueError("mine") from None
        assert caught.group_contains(ValueError, match="mine")
        assert caught.group_contains(JournalWriteFailed)

    run_async(main)
