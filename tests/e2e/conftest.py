"""The end-to-end tests use the harnesses of the conformance suite."""

from tests.conformance.conftest import flow, harness, pair

__all__ = ["flow", "harness", "pair"]
