# The public surface of repertory. From the bottom up:
#
#   errors      the error tree
#   actors      mailboxes, references, supervision: knows nothing of models
#   llm         messages, the Model protocol and its implementations, profiles and prices
#   memory      ledger, journal, content store, memory items: what is kept
#   context     plan, projection, planner: what is shown (pure functions)
#   summarizer  the background actor that writes summaries
#   tools       the @tool decorator, the execution contract, built-in tools
#   agents      Agent, Run, the loop, the supervisor
#   cli         the command line
#
# Each layer imports only those above it in this list; tests/test_layers.py keeps it so.
"""Hierarchies of LLM agents as supervised actors, with a full record on disk and a small, priced view for the model."""

from repertory._version import __version__

__all__ = ["__version__"]
