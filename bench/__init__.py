"""Measurements of the running thing: throughput against the limit of the broker, latency by hop, restore, cost of idling."""
