"""The loop of a run: show, ask, append, act. Nothing in this package is public.

``loop`` has the loop itself. ``tool_calls`` makes tool calls, with permissions and recorded results, and ``teams`` lets
a lead delegate work.
"""

__all__: list[str] = []
