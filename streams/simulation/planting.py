"""What a planted bug is: a known mistake that the simulator must catch, so that its silence means something.

Each names the breach that it causes, and is caught only by that: one that fails for another reason may have died, and nobody would know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streams.simulation.violation import Breach, Failed

Swap = tuple[Any, str, Any]
"""Owner, attribute, what takes its place."""


@dataclass(frozen=True)
class Plant:
    """A known mistake.

    Attributes:
        swaps: Puts it in place.
        breach: What it must be caught by.
        saying: A regular expression that the words of the failure must match, where the name alone could mean something else.
    """

    swaps: Callable[[], list[Swap]]
    breach: Breach
    saying: str = ""

    def is_caught_by(self, failed: Failed) -> bool:
        """Whether a run failed for the reason that this mistake gives it."""
        return failed.breach is self.breach and re.search(self.saying, str(failed)) is not None
