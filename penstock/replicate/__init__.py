"""Replication: copy, capture, buffer, fold, apply, schema changes."""
