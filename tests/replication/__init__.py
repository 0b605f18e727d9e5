"""Replication, on real servers."""
