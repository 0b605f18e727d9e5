"""The fuzz tests use the harnesses of the conformance suite."""

from tests.conformance.conftest import harness

__all__ = ["harness"]
