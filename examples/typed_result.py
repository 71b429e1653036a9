"""A typed task and a typed result: if a result does not fit its type, the model is told and tries again."""

from typing import Literal

import msgspec

import repertory as rp


class Question(msgspec.Struct):
    """What somebody wants to eat."""

    dish: str


class Offer(msgspec.Struct):
    """When there is such a dish, and what it costs."""

    quote: str
    day: Literal["Monday", "Tuesday"]
    price: float


MENU = "On Monday there is leek soup for 4.20 euros. On Tuesday there is dal with rice for 4.80 euros."
clerk = rp.Agent("clerk", instructions=f"Find the dish on the menu. {MENU}", input=Question, output=Offer)

if __name__ == "__main__":
    offer = rp.run_sync(clerk, Question("dal"))
    print(f"{offer.day}, {offer.price:.2f} euros: {offer.quote}")
