-- A day's work in the shop, between the two rounds of the demo.
\set ON_ERROR_STOP on
begin;

update shop.customers
set tier = 'gold', balance = balance + 0.0001, updated_at = clock_timestamp()
where id % 100 = 7;
insert into shop.customers
select max(id) + 1, md5('newcomer')::uuid, 'Newcomer', null, 'IS', 'bronze', 0, '{}', null, clock_timestamp()
from shop.customers;

update shop.products set price = round(price * 1.10, 2), on_sale = false where sku in ('SKU-0003', 'SKU-0042', 'SKU-0077');
insert into shop.products values ('SKU-9001', 'Granite bench', 249.00, 38.5, '{1}', false, current_date);

insert into shop.orders
select (select max(id) from shop.orders) + n, n % 100 + 1, 'placed', clock_timestamp() from generate_series(1, 500) as n;
insert into shop.order_lines
select o.id, 1, 'SKU-9001', 1, 249.00, null, null
from (select id from shop.orders order by id desc limit 500) as o;
update shop.order_lines set quantity = quantity + 1 where order_id % 200 = 11;
delete from shop.order_lines where order_id % 500 = 23 and line = 4;

insert into shop.events (order_id, kind, payload, occurred_at)
select o.id, 'placed', '{"channel": "web"}', clock_timestamp()
from (select id from shop.orders order by id desc limit 500) as o;

commit;
