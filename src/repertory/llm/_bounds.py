"""Size limits for what a server sends. Anything larger is not accepted as an answer."""

# A request to the Messages API may have 32 MB, so more content than that could never be sent back. On the wire an
# answer is larger: 128,000 tokens, one per event of about 120 bytes, are 15 MB; and twice that for other servers.
ANSWER_BYTES = 64 * 2**20
# One JSON document: an event, or an answer that is not streamed. The largest single ones are results of the
# provider's own tools. Decoded to Python objects, JSON takes up to thirty times its bytes: 240 MB at this limit.
DOCUMENT_BYTES = 8 * 2**20
# Signs that begin a JSON value, in all of an answer: the longest has 3.4 million, if it comes in single characters.
MOST_VALUES = 4_000_000
# Error bodies of the provider have some 200 bytes, proxies' pages some kilobytes.
ERROR_BYTES = 64 * 2**10
# Characters kept of a server's error message, also in the journal: enough to list what is wrong with a request.
ERROR_CHARS = 2_000
# A block costs memory and a row, however short it is. Answers with many citations have some hundreds.
MOST_BLOCKS = 10_000
# Tokens of one call: a hundred times the largest window. More is a mistake, and would count as thousands of dollars.
MOST_TOKENS = 100_000_000
