"""What a model is shown of a run, and how its answers are read. Nothing in here is public.

``view`` makes each request, ``plan_edits`` and ``summary_requests`` change what stands in it, ``policies`` say what is
wanted; ``answers`` and ``results`` read what came back.
"""

__all__: list[str] = []
