"""The end-to-end tests use the harnesses of the conformance suite, and the command on a shop of its own."""

from tests.conformance.conftest import flow, harness, pair
from tests.e2e.command import project, shop

__all__ = ["flow", "harness", "pair", "project", "shop"]
