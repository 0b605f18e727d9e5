"""Databases of a server for one test each: emptied and used again, which is several times as quick as making them."""

from __future__ import annotations

import uuid

import psycopg

from penstock.testing.postgres import EmbeddedPostgres

# What would be left after every schema is gone, or shows that somebody is still at work.
_NOT_EMPTIED = """
select exists (select from pg_default_acl) or exists (select from pg_event_trigger)
    or exists (select from pg_publication) or exists (select from pg_foreign_server)
    or exists (select from pg_largeobject_metadata)
    or exists (select from pg_db_role_setting s where s.setdatabase = d.oid)
    or exists (select from pg_prepared_xacts x where x.database = d.datname)
    or exists (select from pg_replication_slots r where r.database = d.datname)
    or exists (select from pg_stat_activity a where a.datid = d.oid and a.pid <> pg_backend_pid()
               and a.backend_type = 'client backend')
    or d.datacl is not null
from pg_database d where d.datname = current_database()
"""
# With the schema `public` as a new database has it.
_EMPTY = """
do $$
declare name text;
begin
  set local lock_timeout = '1s';
  for name in select nspname from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema' loop
    execute format('drop schema %I cascade', name);
  end loop;
  create schema public authorization pg_database_owner;
  grant usage on schema public to public;
end $$
"""


class Databases:
    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self._free: list[str] = []

    def take(self) -> str:
        """The name of an empty database that nobody else has."""
        if self._free:
            return self._free.pop()
        name = f"t{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._server.dsn, autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
        return name

    def give_back(self, name: str) -> None:
        """Empty it; one that cannot be emptied is left as it is and never given again."""
        try:
            with psycopg.connect(self._server.dsn_of(name), autocommit=True) as connection:
                if connection.execute(_NOT_EMPTIED).fetchone() == (False,):
                    connection.execute(_EMPTY)
                    self._free.append(name)
        except psycopg.Error:
            return
