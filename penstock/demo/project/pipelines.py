"""A pipeline in Python: its query runs on the source, its transform takes a Spark DataFrame and gives one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import penstock as ps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@ps.pipeline(source="shop", target="warehouse.main.baskets", mode="truncate", tags=["daily"])
def baskets() -> str:
    return "select order_id, sku, quantity from shop.order_lines"


@baskets.transform
def per_order(lines: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return lines.groupBy("order_id").agg(f.count("sku").alias("lines"), f.sum("quantity").alias("pieces"))
