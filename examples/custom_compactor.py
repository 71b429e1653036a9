"""A custom rule for shortening old results: a till's receipt is reduced to its total."""

import repertory as rp
from repertory.llm import text_of
from repertory.shortening import register_compactor
from repertory.testing import ScriptedModel, call


class Receipt:
    """Recognizes a receipt by its first line and keeps its total."""

    name = "receipt"

    def matches(self, text: str, data: object) -> bool:
        """Whether a result is a receipt."""
        return text.startswith("RECEIPT")

    def compact(self, text: str, data: object, length: int) -> str:
        """Return the shortened receipt."""
        return next(line for line in text.splitlines() if line.startswith("TOTAL"))[:length]


@rp.tool(effect="pure", policy=rp.ResultPolicy(compactor="receipt", expiration_mode="compact", expiration_turns=1))
def till(day: int) -> str:
    """The receipt of a day."""
    return "\n".join(["RECEIPT", *(f"item {n}: {n}.00 euros" for n in range(200)), f"TOTAL day {day}: 19,900.00 euros"])


register_compactor(Receipt())
MODEL = ScriptedModel([*(call("till", day=day) for day in range(4)), "19,900 euros each day."])

if __name__ == "__main__":
    cashier = rp.Agent("cashier", tools=[till], context=rp.ContextPolicy(rhythm="strict", window=1))
    print(rp.run_sync(cashier, "What was taken in?", model=MODEL))
    seen = "\n".join(text_of(message.content) for message in MODEL.requests[-1].messages)
    print(f"{seen.count('item 7:')} receipt whole, {seen.count('TOTAL day')} totals")
