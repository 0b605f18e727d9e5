"""The demo: a shop in an embedded Postgres, loaded into a DuckDB file in every mode.

`project/` is an ordinary Penstock project, copied as it is; `shop.sql` and `changes.sql` make the
shop and a day's work in it. Nothing here prints: the command shows what the runner returns.
"""
