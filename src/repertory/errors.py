"""Every error that repertory raises on purpose.

::

    RepertoryError
    ├── ConfigurationError          the caller's definition or option is wrong
    │   └── DefinitionError         a file that defines an agent or a skill is wrong
    ├── ActorError                  the actor runtime
    │   ├── MailboxFull             busy: try again, or await send()
    │   ├── ActorStopped            gone: the message was not handled
    │   ├── AskTimeout              the answer did not come in time
    │   ├── AskCycle                the ask would wait for itself
    │   ├── UnhandledMessage        the receiver has no handler for this type
    │   └── ActorFailed             the receiver crashed while handling it
    ├── ModelError                  a language model call
    │   ├── UnknownModel            no such model
    │   ├── ModelAuthenticationError  the key is missing or refused
    │   ├── ModelUnavailable        unreachable, overloaded or rate limited, after all retries
    │   │   └── ModelTimeout        no content for too long
    │   ├── ModelRequestRejected    the server refused the request (a 400)
    │   │   ├── PromptTooLong       the request does not fit the model's window
    │   │   ├── MediaUnreadable     the server cannot read an image or a document in it
    │   │   └── ThinkingMismatch    an edit of the past broke a bound thinking block
    │   ├── ModelRefused            the model declined to answer
    │   └── ModelResponseInvalid    the answer cannot be read
    ├── JournalError                the durable record
    │   ├── JournalLocked           another process owns the file
    │   ├── JournalSchemaTooNew     written by a newer repertory
    │   ├── JournalUnavailable      the database server does not answer
    │   ├── JournalUnreadable       not a journal, damaged, or no permission
    │   │   ├── JournalMissing      there is none yet
    │   │   └── JournalDamaged      a record is not what was written
    │   ├── JournalWriteFailed      the disk refused; nothing after it is acknowledged
    │   │   └── LeaseLost           another machine has taken over the runs of this one
    │   ├── JournalReadOnly         opened to look only
    │   ├── RecordRefused           a record cannot be kept, or is there already; nothing of its batch was written
    │   └── JournalClosed           used after close, or in a fork
    ├── MemoryStoreError            memory items and scopes
    │   ├── ItemNotFound            no such item in this scope
    │   ├── ItemChanged             somebody else has written it meanwhile
    │   ├── ScopeNotFound           no such scope, or another tree's
    │   ├── ScopeReadOnly           nothing can be written through this scope
    │   ├── ContentNotFound         no such stored content, or it was cleaned up
    │   ├── QuotaExceeded           one item too many, or too large
    │   └── PayloadInvalid          a payload does not fit its type, or has no such place
    ├── ContextError                what the model may be shown
    │   ├── InvalidRequest          the projection broke a rule of the Messages API (our bug)
    │   └── ContextOverflow         it does not fit, even at its smallest
    ├── ToolError                   a tool call, by addressee
    │   ├── ToolRetry               the model may try again with other arguments
    │   ├── ToolFailed              the model is told, and continues without
    │   ├── ToolAbort               the caller is told: the run ends
    │   └── ToolSetUnavailable      a tool set, such as an MCP server, cannot be opened
    ├── RunError                    a whole run
    │   ├── RunNotFound
    │   ├── RunExists               another run has this id
    │   ├── RunElsewhere            another machine has it; Supervisor.remote reaches it there
    │   ├── MachineSilent           the machine that has a run does not answer
    │   ├── RunFailed
    │   ├── RunStopped
    │   ├── ResultInvalid           what the model gave as its result does not fit the type asked for
    │   ├── ContextMissing          it has an application context, which must be given again
    │   ├── QueueFull               its client has as many runs in the queue as it may
    │   └── LimitExceeded           iterations, depth, runs, money, tokens, time, tool calls
    ├── RecordingError              a recorded run cannot be read
    ├── ServiceUnavailable          no service answers at the expected address, or not in time
    │   └── ServiceGone             one that was asked no longer answers
    └── AddressInUse                another process serves at this socket or port

A message states in lower case what is wrong, with the offending value and its place, and then what to do instead.
"""

from __future__ import annotations

from typing import Any


def remade(kind: type[RepertoryError], *args: Any) -> RepertoryError:
    """Make an error again without calling its constructor, which may take other arguments than the message."""
    return kind.__new__(kind, *args)


class RepertoryError(Exception):
    """The base class of every error that repertory raises on purpose. Each can be copied and pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copying and pickling."""
        return remade, (type(self), *self.args), vars(self)


class ConfigurationError(RepertoryError):
    """A definition or option is wrong; the message names the field, the expected value and the actual one."""


class DefinitionError(ConfigurationError):
    """A file that defines an agent or a skill is wrong; the message names the file, the line and the field.

    Attributes:
        path: The file.
        field: The field; "" for the whole file.
        line: Its line, from 1; None if it is not known.
    """

    def __init__(self, path: str, problem: str, *, field: str = "", line: int | None = None) -> None:
        place = path if line is None else f"{path}, line {line}"
        super().__init__(f"{place}: {f'{field}: ' if field else ''}{problem}")
        self.path = path
        self.field = field
        self.line = line


# --- actors -----------------------------------------------------------------------------------------------


class ActorError(RepertoryError):
    """The base class of errors about an actor or a message to it."""


class MailboxFull(ActorError):
    """The receiver's mailbox is at its bound; nothing was enqueued. ``await ref.send(...)`` waits instead."""


class ActorStopped(ActorError):
    """The receiver has stopped; the message went to dead letters and was not handled."""


class AskTimeout(ActorError):
    """The answer did not come before the deadline; the receiver may or may not have acted."""


class AskCycle(ActorError):
    """The ask would wait for an actor that is itself waiting, further up, for this answer."""


class UnhandledMessage(ActorError):
    """The receiver has no handler for this type of message."""


class ActorFailed(ActorError):
    """The receiver crashed while handling the message; ``__cause__`` holds its error."""


# --- models -----------------------------------------------------------------------------------------------


class ModelError(RepertoryError):
    """A language model call that gave no usable answer."""


class UnknownModel(ModelError):
    """No such model at this provider."""


class ModelAuthenticationError(ModelError):
    """The key is missing, malformed, refused, may not use this model, or its account has no money left."""


class ModelUnavailable(ModelError):
    """The server could not be reached, was overloaded or limited the rate, after all retries."""


class ModelTimeout(ModelUnavailable):
    """The server sent no content for too long; keep-alive pings do not count as content."""


class ModelRequestRejected(ModelError):
    """The server refused the request as malformed (a 400); sending it again unchanged cannot help."""


class PromptTooLong(ModelRequestRejected):
    """The request is larger than the model's window; send a strictly smaller one.

    Attributes:
        media: Whether it has too many images or documents, or too large ones for so many: no limit on tokens was met.
    """

    def __init__(self, message: str, *, media: bool = False) -> None:
        super().__init__(message)
        self.media = media


class MediaUnreadable(ModelRequestRejected):
    """The server cannot read an image or a document in the request; send it without."""


class ThinkingMismatch(ModelRequestRejected):
    """A thinking block is bound to another history than the one it was sent with."""


class ModelRefused(ModelError):
    """The model declined to continue, and would decline the same request again: use another model, or say more."""


class ModelResponseInvalid(ModelError):
    """The server's answer cannot be read: truncated stream, broken JSON, or no content at all."""


# --- the journal ------------------------------------------------------------------------------------------


class JournalError(RepertoryError):
    """The durable record cannot be opened, read or written."""


class JournalLocked(JournalError):
    """Another process owns the file.

    Attributes:
        path: The file; "" if another program has locked it.
        owner: The process id of the owner; 0 if it has not written it yet.
    """

    def __init__(self, message: str, *, path: str = "", owner: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.owner = owner


class JournalSchemaTooNew(JournalError):
    """The file was written by a newer repertory than this one."""


class JournalUnavailable(JournalError):
    """The database server cannot be reached; a later attempt may succeed."""


class JournalUnreadable(JournalError):
    """The file is not a journal, is damaged, or may not be read."""


class JournalMissing(JournalUnreadable):
    """There is no journal at that place yet."""


class JournalDamaged(JournalUnreadable):
    """Something in the file is not what was written; the message names the record, its run and its position."""


class JournalWriteFailed(JournalError):
    """The disk refused a write. Everything acknowledged before is kept; nothing is acknowledged after it."""


class LeaseLost(JournalWriteFailed):
    """Another machine has taken over this one's runs, because this one did not renew its lease in time.

    The runs continue there. Everything acknowledged here is kept; start the supervisor again to take part again.
    """


class JournalReadOnly(JournalError):
    """The journal was opened with ``readonly=True``; it takes no records."""


class RecordRefused(JournalError):
    """A record has a value that cannot be stored exactly (a nan, a 65-bit number), or a run or position already there.

    Nothing of its batch was written, and the journal continues without it.
    """


class JournalClosed(JournalError):
    """The journal was used after it was closed, or in a fork of the process that opened it."""


# --- memory and context -----------------------------------------------------------------------------------


class MemoryStoreError(RepertoryError):
    """A memory item, scope or stored content is missing, in conflict, or over a quota."""


class ItemNotFound(MemoryStoreError):
    """The scope has no item with this id."""


class ItemChanged(MemoryStoreError):
    """The item is not at the position that the write was meant for; nothing was stored."""


class ScopeNotFound(MemoryStoreError):
    """No memory scope has this id, or it belongs to another tree of runs."""


class ScopeReadOnly(MemoryStoreError):
    """Nothing can be written through this scope."""


class ContentNotFound(MemoryStoreError):
    """No stored content has this citation, or its body was cleaned up."""


class QuotaExceeded(MemoryStoreError):
    """The scope already holds as many items or bytes as it may; nothing was stored."""


class PayloadInvalid(MemoryStoreError):
    """A payload does not fit its type, has nothing at a path, or may not be changed there; nothing was changed."""


class ContextError(RepertoryError):
    """The base class of errors about what the model is shown."""


class InvalidRequest(ContextError):
    """A request breaks a rule of the Messages API; the message names the rule and the place."""


class ContextOverflow(ContextError):
    """What must be shown does not fit the window, even at its smallest."""


# --- tools ------------------------------------------------------------------------------------------------


class ToolError(RepertoryError):
    """A tool call that did not succeed. Raise one of the subclasses; they differ in who is told."""


class ToolRetry(ToolError):
    """The model may try again: the arguments or the moment were wrong. The model is shown the text."""


class ToolFailed(ToolError):
    """The model is told that the call failed, and decides how to continue without it."""


class ToolAbort(ToolError):
    """The run ends with this error, which its caller gets. For failures that no model can repair."""


class ToolSetUnavailable(ToolError):
    """A tool set could not be opened: its server cannot be started or reached. The text says why."""


# --- runs -------------------------------------------------------------------------------------------------


class RunError(RepertoryError):
    """The base class of errors about a whole run."""


class RunNotFound(RunError):
    """No run has this id, or several begin like it where a beginning will do."""


class RunExists(RunError):
    """A run with this id has another task or another agent; the message names the difference."""


class RunElsewhere(RunError):
    """The run waits for a machine, or another one has it: ``await supervisor.remote(run_id)`` reaches it there."""


class MachineSilent(RunError):
    """No machine answered in time for a run of another process; the request is on record, and may still take effect."""


class RunFailed(RunError):
    """The run ended with an error, which is the ``__cause__``; if it ended in another process, only one of these."""


class RunStopped(RunError):
    """The run was stopped before it had a result."""


class ResultInvalid(RunError):
    """A result does not fit the requested type; the message names the field. The result is on record."""


class ContextMissing(RunError):
    """A run with an application context, which is never recorded, cannot continue without being given it again."""


class QueueFull(RunError):
    """A run would have to wait, and its client has as many runs in the queue as it may; nothing was recorded.

    Attributes:
        retry_after: Seconds after which it makes sense to try again.
    """

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LimitExceeded(RunError):
    """A limit of the run or of one above it was reached; see ``Limits``."""


# --- the service ------------------------------------------------------------------------------------------


class ServiceUnavailable(RepertoryError):
    """No service answers at the expected address, or not in time; the message says how to start one."""


class ServiceGone(ServiceUnavailable):
    """A service that was asked no longer answers; it may come back."""


class AddressInUse(RepertoryError):
    """Another process already listens at the service's socket or port."""


# --- recorded runs ----------------------------------------------------------------------------------------


class RecordingError(RepertoryError):
    """A recorded run cannot be read; the message names the file, the line and what was expected there."""
