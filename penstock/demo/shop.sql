-- The shop: the same rows at every start, made by arithmetic instead of chance.
-- psql variable: orders (how many; order lines are four times as many).
\set ON_ERROR_STOP on
set client_min_messages = warning;
begin;

create schema shop;
create type shop.tier as enum ('bronze', 'silver', 'gold');
create type shop.order_state as enum ('placed', 'paid', 'shipped', 'returned');

create table shop.customers (
  id bigint primary key,
  public_id uuid not null unique,
  name text not null,
  email text,
  country char(2) not null,
  tier shop.tier not null,
  balance numeric(18, 4) not null,
  tags text[] not null,
  preferences jsonb,
  updated_at timestamptz not null
);
insert into shop.customers
select n,
       md5('customer ' || n)::uuid,
       'Customer ' || n,
       case when n % 11 = 0 then null else 'customer' || n || '@example.org' end,
       (array['NO', 'SE', 'DE', 'NL', 'PT', 'IE'])[n % 6 + 1],
       (array['bronze', 'bronze', 'silver', 'gold'])[n % 4 + 1]::shop.tier,
       (n * 7919 % 1000003)::numeric / 10000,
       case when n % 3 = 0 then array['newsletter', 'early bird'] when n % 3 = 1 then array['newsletter'] else '{}' end,
       jsonb_build_object('language', (array['nb', 'sv', 'de', 'nl', 'pt', 'en'])[n % 6 + 1], 'dark', n % 2 = 0),
       now() - make_interval(hours => (n % 2000)::int)
from generate_series(1, greatest(:orders / 10, 10)) as n;

create table shop.products (
  sku text primary key,
  title text not null,
  price numeric(12, 2) not null,
  weight_kg real,
  sizes int[] not null,
  on_sale boolean not null,
  released date not null
);
insert into shop.products
select 'SKU-' || lpad(n::text, 4, '0'),
       (array['Oak', 'Birch', 'Slate', 'Copper', 'Linen'])[n % 5 + 1] || ' '
         || (array['lamp', 'chair', 'bowl', 'shelf', 'kettle', 'rug', 'clock'])[n % 7 + 1],
       (n * 613 % 49900 + 100)::numeric / 100,
       case when n % 9 = 0 then null else (n % 40)::real / 4 end,
       array[n % 4 + 1, n % 4 + 2],
       n % 5 = 0,
       date '2021-01-01' + (n * 3 % 1400)::int
from generate_series(1, 400) as n;

create table shop.orders (
  id bigint primary key,
  customer_id bigint not null references shop.customers,
  state shop.order_state not null,
  placed_at timestamptz not null
);
insert into shop.orders
select n,
       n * 31 % greatest(:orders / 10, 10) + 1,
       (array['placed', 'paid', 'shipped', 'shipped', 'shipped', 'returned'])[n % 6 + 1]::shop.order_state,
       timestamptz '2024-01-01 00:00:00+00' + make_interval(mins => (n * 17 % 1000000)::int)
from generate_series(1, :orders) as n;

create table shop.order_lines (
  order_id bigint not null references shop.orders,
  line int not null,
  sku text not null references shop.products,
  quantity int not null,
  unit_price numeric(12, 2) not null,
  discount numeric(5, 4),
  note text,
  primary key (order_id, line)
);
insert into shop.order_lines
select o.id, l, p.sku, (o.id * l % 5 + 1)::int, p.price,
       case when o.id % 10 = 0 then 0.1250 end,
       case when o.id % 50 = 0 then 'gift, "wrapped"' end
from shop.orders as o
cross join generate_series(1, 4) as l
join shop.products as p on p.sku = 'SKU-' || lpad(((o.id * 13 + l * 101) % 400 + 1)::text, 4, '0');

create table shop.events (
  id bigint generated always as identity primary key,
  order_id bigint not null,
  kind shop.order_state not null,
  payload jsonb not null,
  occurred_at timestamptz not null
);
insert into shop.events (order_id, kind, payload, occurred_at)
select o.id, o.state, jsonb_build_object('channel', case when o.id % 3 = 0 then 'shop' else 'web' end, 'order', o.id),
       now() - interval '1 day' + make_interval(secs => o.id % 80000)
from shop.orders as o;

commit;
analyze;
