"""The loop of a run: show, ask, append, act. Nothing in here is public.

``loop`` is the whole of it. What it acts with stands beside it: ``tool_calls``, with permissions and kept results, and
``teams``, by which a lead hands work on.
"""

__all__: list[str] = []
