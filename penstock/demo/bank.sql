-- A bank beside the shop: transfers between accounts, whose sum never changes.
\set ON_ERROR_STOP on
set client_min_messages = warning;
create schema bank;
create table bank.accounts (id int primary key, owner text not null, balance numeric(12, 2) not null);
create table bank.transfers (
  id bigint generated always as identity primary key,
  sender int not null,
  receiver int not null,
  amount numeric(12, 2) not null,
  sent_at timestamptz not null default clock_timestamp()
);
create schema office;
create table office.closed (at timestamptz not null);
insert into bank.accounts select n, 'Owner ' || n, 1000 from generate_series(1, :accounts) as n;

create procedure office.trade(accounts int) language plpgsql as $$
declare
  sent numeric(12, 2);
  one int;
  other int;
begin
  while not exists (select from office.closed) loop
    one := 1 + floor(random() * accounts);
    other := 1 + floor(random() * accounts);
    sent := 1 + floor(random() * 100);
    update bank.accounts set balance = balance - sent where id = one;
    update bank.accounts set balance = balance + sent where id = other;
    insert into bank.transfers (sender, receiver, amount) values (one, other, sent);
    if random() < 0.02 then
      rollback;
    else
      commit;
    end if;
    perform pg_sleep(0.002);
  end loop;
end $$;
