"""The whole Python API for pipeline authors; everything else is internal (SURFACE 'Python').

Projector            makes a step's output from the stored request and what the outside party is trusted with
Completion           what a projector knows about the answer besides its payload
TopologyTestDriver   runs a pipeline in a test, without Kafka, with time moved by hand
submit, reply        start an execution, answer a request, from your own Python process
"""

from __future__ import annotations

from streams.doors.api import reply, submit
from streams.testing.driver import TopologyTestDriver
from topologies.pipeline.projection import Completion, Projector

__all__ = ["Completion", "Projector", "TopologyTestDriver", "reply", "submit"]
