"""Commands for runs that another machine owns: recorded first, carried out by the owner, answered in the same row.

If the owner dies, the next owner carries the command out. It may then be carried out twice, so each command is either
safe to repeat, or its owner records that it is done in one transaction with its effect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

from repertory._error_texts import decode_error, encode_error
from repertory._ids import new_id, unit_of
from repertory.errors import MachineSilent, RepertoryError, RunError
from repertory.llm.messages import Json
from repertory.machines.machine import Machines
from repertory.record.rows import decode_json, encode_json

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

PATIENCE: Final = 10.0  # seconds to wait for an answer, as long as for one of the service
_POLL: Final = 1.0  # seconds between two looks, in case a notification was lost

_WRITE: Final = """INSERT INTO commands (command_id, root_id, run_id, verb, body, at)
    VALUES ($1, $2, $3, $4, $5, clock_timestamp()) ON CONFLICT (command_id) DO UPDATE
    SET at = excluded.at, answered_at = NULL, error = NULL
    WHERE commands.error IS NOT NULL AND (commands.verb, commands.body) = (excluded.verb, excluded.body)"""
_SAME: Final = "SELECT verb = $2 AND body = $3 FROM commands WHERE command_id = $1"
_ANSWER: Final = "SELECT error, result FROM commands WHERE command_id = $1 AND answered_at IS NOT NULL"
_OPEN: Final = """SELECT c.command_id, c.run_id, c.verb, c.body, c.taken_by IS NOT NULL FROM commands c
    JOIN ownership o ON o.run_id = c.root_id WHERE o.machine_id = $1 AND c.answered_at IS NULL ORDER BY c.at"""
_TAKE: Final = """UPDATE commands c SET taken_by = $1 FROM ownership o
    WHERE o.run_id = c.root_id AND o.machine_id = $1 AND c.answered_at IS NULL AND c.taken_by IS DISTINCT FROM $1"""
# A command for a run that has ended meanwhile, and so has no owner, is refused. But a command that a machine is
# carrying out is answered by that machine, since a message continues the run.
_LATE: Final = """UPDATE commands c SET answered_at = clock_timestamp(), error = $1
    WHERE answered_at IS NULL AND NOT EXISTS (SELECT 1 FROM ownership o WHERE o.run_id = c.root_id)
      AND NOT command_id = ANY($3) AND NOT EXISTS (
          SELECT 1 FROM machines m WHERE m.machine_id = c.taken_by AND m.machine_id <> $2 AND m.lost_at IS NULL)"""
_DONE: Final = "UPDATE commands SET answered_at = clock_timestamp(), error = $2, result = $3 WHERE command_id = $1"
_FORGET_ONE: Final = "DELETE FROM commands WHERE command_id = $1"
_FORGET: Final = "DELETE FROM commands WHERE answered_at < clock_timestamp() - interval '1 day'"


class Command(msgspec.Struct, frozen=True):
    """A command for a run.

    Attributes:
        command_id: Its id, the same when it is repeated.
        verb: The method of ``Run`` that carries it out.
        body: The arguments of the method.
        again: Whether a machine, this one or another, may have carried it out before.
    """

    command_id: str
    run_id: str
    verb: str
    body: Json
    again: bool = False


class Commands:
    """Commands between this machine and the others.

    Attributes:
        machines: This machine.
    """

    def __init__(self, machines: Machines) -> None:
        self.machines = machines

    async def ask(
        self,
        run_id: str,
        verb: str,
        body: Json,
        *,
        command_id: str = "",
        within: float = PATIENCE,
        once: bool = False,
    ) -> str:
        """Let the owner of a run carry out a command; returns its result.

        Args:
            verb, body, command_id: As in ``Command``; an id of "" for a command that is never repeated.
            within: Seconds to wait for the answer; infinity waits until there is one.
            once: The command's id is never used again, so that its row need not be kept.

        Raises:
            MachineSilent: No answer came in this time. The command is recorded, and carried out once a machine can.
            RunError: A different command was given under its id.
            RepertoryError: The error that the method of ``Run`` raised at the owner.
        """
        command_id = command_id or new_id("cmd")
        values = [command_id, unit_of(run_id), run_id, verb, encode_json(body)]

        def write(connection: Connection) -> bool:
            with connection.transaction():
                connection.execute(_WRITE, values)
                self.machines.notify(connection, "command")
            return bool(connection.execute(_SAME, values[:1] + values[3:]).fetchone() == (True,))

        if not await self.machines.use("ask another machine through", write):
            raise RunError(f"run {run_id} was asked for something else under the id {command_id} before")
        with anyio.move_on_after(within):
            while True:
                news = self.machines.news("answer")
                if answered := await self.machines.rows("read an answer in", _ANSWER, command_id):
                    break
                with anyio.move_on_after(_POLL):
                    await news.wait()
            if once:
                await self.machines.use(
                    "read an answer in", lambda connection: connection.execute(_FORGET_ONE, [command_id])
                )
            ((error, result),) = answered
            if error:
                raise decode_error(decode_json(error))
            return str(result)
        raise MachineSilent(
            f"no machine has answered within {within:g} s about run {run_id}; {verb} is written down "
            "and carried out once one can: repertory machines shows who is there"
        )

    async def open(self, under_way: Collection[str]) -> Sequence[Command]:
        """The unanswered commands for runs of this machine, oldest first; it is carrying out those ``under_way``."""

        refusal = encode_json(encode_error(RunError("the run has ended meanwhile")))
        late = [refusal, self.machines.machine_id, list(under_way)]

        def read(connection: Connection) -> list[Command]:
            connection.execute(_LATE, late)
            rows = connection.execute(_OPEN, [self.machines.machine_id]).fetchall()
            # The next look repeats a command that comes in between.
            connection.execute(_TAKE, [self.machines.machine_id])
            return [
                Command(command_id, run_id, verb, decode_json(body), again)
                for command_id, run_id, verb, body, again in rows
            ]

        return await self.machines.use("read what is asked in", read)

    async def answer(self, command: Command, error: RepertoryError | None, result: str = "") -> None:
        """Record the result of a command that was carried out, or why it was not."""
        values = [command.command_id, None if error is None else encode_json(encode_error(error)), result]

        def write(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(_DONE, values)
                connection.execute(_FORGET)
                self.machines.notify(connection, "answer")

        await self.machines.use("answer another machine through", write)
