"""Nouns that cross a boundary: ids, facts, envelopes, topics, Avro and errors; imports nothing of ours."""
