"""The fuzz tests use the harnesses of the conformance suite, and the stands of replications."""

from tests.conformance.conftest import harness
from tests.replication.conftest import make, servers

__all__ = ["harness", "make", "servers"]
