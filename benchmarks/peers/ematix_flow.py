"""ematix-flow: a merge between two Postgres databases through `pipeline.sync`, warm in one process."""

from __future__ import annotations

from typing import Any

PINS = "ematix_flow.txt"
JOBS = {"postgres"}


def start(settings: dict[str, Any]) -> dict[str, Any]:
    from ematix_flow import config

    return {
        "source": config.connect(url=settings["source"]["dsn"]),
        "target": config.connect(url=settings["target"]["dsn"]),
    }


def run(state: dict[str, Any], job: dict[str, Any]) -> None:
    from ematix_flow import pipeline
    from ematix_flow.source import Source

    schema, name = job["target_table"].split(".")
    pipeline.sync(
        target=_table(schema, name),
        source=Source(connection=state["source"], query=f"select * from {job['table']}"),
        target_connection=state["target"],
        mode="merge",
        keys=("id",),
    )


def _table(schema: str, name: str) -> Any:
    from ematix_flow import types
    from ematix_flow.table import ManagedTable
    from ematix_flow.types import Column

    members = {
        "__schema__": schema,
        "__tablename__": name,
        "id": Column(types.BigInt(), nullable=False, primary_key=True),
        "quantity": Column(types.Integer()),
        "ratio": Column(types.Double()),
        "amount": Column(types.Numeric(38, 12)),
        "customer": Column(types.Text()),
        "note": Column(types.Text()),
        "paid": Column(types.Boolean()),
        "day": Column(types.Date()),
        "updated_at": Column(types.TimestampTZ()),
        "token": Column(types.UUID()),
    }
    return type("Orders", (ManagedTable,), members)
