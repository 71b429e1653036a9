"""What a model is shown of a run, and how its answers are read. Nothing in here is public.

``view`` makes each request, ``plan_edits`` and ``summary_requests`` change what is in it, ``policies`` merges what is
wanted; ``answers`` and ``results`` read what comes back.
"""

__all__: list[str] = []
