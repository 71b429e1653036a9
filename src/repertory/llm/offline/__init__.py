"""A stand-in for a language model that needs no key and no network.

It is rules, not intelligence: it plans with key words, searches, reads around the best hits, and answers by quoting
what fits, with its source. Everything around it is real.
"""

from repertory.llm.offline.model import OfflineModel

__all__ = ["OfflineModel"]
