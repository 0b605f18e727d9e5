"""The project: `penstock.toml`, the connection registry, `${VAR}` and decorated objects.

Nothing here imports a driver or Spark until a connection is asked for.
"""

from penstock.project.connections import Connections, Entry
from penstock.project.load import load
from penstock.project.model import ColumnOption, Pipeline, Project, SparkConfig, StateConfig, TargetName
from penstock.project.schema import json_schema

__all__ = [
    "ColumnOption",
    "Connections",
    "Entry",
    "Pipeline",
    "Project",
    "SparkConfig",
    "StateConfig",
    "TargetName",
    "json_schema",
    "load",
]
