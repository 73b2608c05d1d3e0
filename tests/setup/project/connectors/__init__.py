"""Whom we ask."""
