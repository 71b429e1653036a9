"""The bounded queue in front of an actor."""

from __future__ import annotations

from typing import Literal, TypeAlias

Overflow: TypeAlias = Literal["fail", "drop-new", "drop-old", "wait"]
"""What happens when a mailbox is full.

============  ==================  =====================  ===================
policy        ``tell``            ``await ask``          ``await send``
============  ==================  =====================  ===================
``fail``      ``MailboxFull``     ``MailboxFull``        waits for room
``wait``      ``MailboxFull``     waits for room         waits for room
``drop-new``  to dead letters     ``MailboxFull``        waits for room
``drop-old``  the oldest message  the oldest message     waits for room
              to dead letters     to dead letters
============  ==================  =====================  ===================
"""
