"""What the outside party of the small pipelines says when it is in a good mood."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.envelopes import RequestEnvelope
    from streams.testing.driver import TopologyTestDriver

SECRET = "shop-secret-of-thirty-two-bytes!"
"""Signs the resume tokens of every pipeline here."""

SIGNED = ("steps.ask.await.correlation.strategy=signedResumeToken",)
"""Override: answers need the request's token."""


def price(request: RequestEnvelope, amount: str = "1.50") -> dict[str, str]:
    """The good answer to a request."""
    return {"sku": json.loads(bytes(request.request_payload))["sku"], "price": amount}


def answer(driver: TopologyTestDriver, *requests: RequestEnvelope) -> None:
    """Answer all of these well, then let the application come to rest."""
    for request in requests:
        driver.complete(request, price(request))
    driver.run()
