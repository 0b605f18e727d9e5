"""Pipelines in Python: the query runs in the source, the transform takes a Spark DataFrame and gives one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import penstock as ps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@ps.pipeline(source="shop", target="warehouse.main.revenue", mode="truncate", tags=["daily"])
def revenue() -> str:
    return """
        select customers.country, orders.amount
        from main.orders
        join main.customers on customers.id = orders.customer_id
    """


@revenue.transform
def per_country(orders: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return orders.groupBy("country").agg(f.count("amount").alias("orders"), f.sum("amount").alias("revenue"))
