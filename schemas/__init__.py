"""Nouns that cross a boundary: ids, names, facts, envelopes, topics, Avro, limits and errors; imports nothing of ours."""
