"""The sample shop to read from: `python shop.py` makes it anew, `python shop.py change` is a day in it.

Delete it, with shop.duckdb, when the project reads a database of your own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

SHOP = Path(__file__).with_name("shop.duckdb")

NEW = """
create or replace table customers (
    id integer primary key, name varchar not null, country varchar not null, updated_at timestamptz not null
);
create or replace table orders (
    id integer primary key, customer_id integer not null, amount decimal(12, 2) not null, placed_at timestamptz not null
);
insert into customers values
    (1, 'Ada', 'GB', '2026-01-05 09:00:00+00'), (2, 'Blaise', 'FR', '2026-01-06 10:30:00+00'),
    (3, 'Carl', 'DE', '2026-01-07 11:15:00+00'), (4, 'Emmy', 'DE', '2026-01-08 16:45:00+00');
insert into orders
select n, n % 4 + 1, (n * 7.35)::decimal(12, 2), timestamptz '2026-02-01 08:00:00+00' + to_hours(n::bigint)
from range(1, 201) numbers(n);
"""

CHANGE = """
update customers set country = 'SE', updated_at = '2026-03-01 09:00:00+00' where id = 2;
delete from customers where id = 4;
insert into customers values (5, 'Grace', 'US', '2026-03-01 09:30:00+00');
insert into orders values (201, 5, 120.00, '2026-03-01 10:00:00+00');
"""


def main(words: list[str]) -> None:
    if words not in ([], ["change"]):
        sys.exit("usage: python shop.py [change]")
    with duckdb.connect(str(SHOP)) as shop:
        shop.execute(CHANGE if words else NEW)


if __name__ == "__main__":
    main(sys.argv[1:])
