"""One load: staging for the tasks, then one transaction that carries everything in.

The session that holds the locks is the session that commits. After an error in COMMIT nothing is
assumed: the run's row in `_penstock.loads` is looked for once the old session is surely gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import psycopg
from psycopg.pq import TransactionStatus
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from penstock.backends.base import RAW, Check, Load, LoadPlan, LoadResult, Receipt, Sink, TableLoad
from penstock.backends.postgres import leases
from penstock.backends.postgres.config import PostgresConfig
from penstock.backends.postgres.connect import DriverSession, identifier, literal, open_session
from penstock.backends.postgres.dialect import create_table, qualified, render
from penstock.backends.postgres.encode import Wire
from penstock.backends.postgres.errors import refused
from penstock.backends.postgres.native import staging_type
from penstock.backends.postgres.query import trimmed
from penstock.backends.postgres.sink import PART, PostgresSink
from penstock.backends.postgres.spelling import Spelling
from penstock.backends.sql import (
    Counts,
    check_source,
    check_staged,
    check_watermark,
    record_load,
    result,
    run_steps,
    was_committed,
)
from penstock.errors import LinkLost, PenstockError, StagingLost, TargetError
from penstock.observe.failpoints import failpoint
from penstock.observe.logs import Log
from penstock.schema import CreateTable

log = Log("postgres")

# Room for the joins of one load: the server's own default of 4 MB sends them to its disk.
WORK_MEM = "64MB"
# How long a lost answer to COMMIT is looked for before it is called unknown.
ANSWER_SECONDS = 60.0


class PostgresLoad(Load):
    """Holds the target's locks from `begin` to `close`."""

    def __init__(self, config: PostgresConfig, plan: LoadPlan) -> None:
        self._config = config
        self._plan = plan
        self._conninfo = config.conninfo()
        self._closed = False
        self._session = self._connect()
        try:
            self._begin()
        except BaseException:
            # If we died here instead, the server frees the locks and the next run sweeps the rest.
            self._session.connection.close()
            raise

    def _connect(self) -> DriverSession:
        connection = open_session(
            self._conninfo, self._plan.run.application_name, (("lock_timeout", self._config.lock_timeout),)
        )
        session = DriverSession(connection, self._conninfo)
        self._see_key_types(session)
        return session

    def _see_key_types(self, session: DriverSession) -> None:
        """`=` on a type of an extension is an operator of its schema: unseen, citext compares as text."""
        keys = self._plan.key_columns
        held = [s.native.sql for load in self._plan.tables for s in load.columns if s.column.name in keys]
        schemas = {schema for sql in held if (schema := Spelling.parse(sql).schema)}
        if schemas:
            path = ", ".join(identifier(schema) for schema in sorted(schemas))
            session.query(
                "select pg_catalog.set_config('search_path', pg_catalog.concat_ws(', ',"
                " nullif(pg_catalog.current_setting('search_path'), ''), %s::pg_catalog.text), false)",
                (path,),
            )

    def _begin(self) -> None:
        leases.prepare(self._session)
        if self._plan.keeps:
            self.done = was_committed(self._session, self._plan.run.run_id)
            if not self.done:
                # Nobody sweeps what is kept: with the note first, nothing that is staged is ever without it.
                leases.keep(self._session, self._plan)
                self._make_staging()
            failpoint("load.staging")
            self._session.connection.close()
            return
        leases.claim(self._session, self._plan)
        failpoint("load.begin")
        if self._plan.native_query is None:
            # An earlier attempt of this very run may have staged with another plan.
            leases.end_sessions(self._session, f"{self._plan.run.application_name}{leases.SINK_SUFFIX}")
            leases.remove(self._session, self._plan.run.run_id)
        # The lease before any staging: what has no lease is found by its name only.
        leases.lease(self._session, self._plan)
        leases.sweep(self._session, self._plan.run.run_id)
        if self._plan.native_query is None:
            self._make_staging()
        failpoint("load.staging")

    def _make_staging(self) -> None:
        for number, load in enumerate(self._plan.tables):
            name = f"_penstock.{identifier(leases.staging_name(self._plan.run.run_id, number))}"
            adopted = [ddl for ddl in load.adopt if isinstance(ddl, CreateTable)]
            if adopted:
                # Logged from the start: it becomes the target.
                self._session.execute(create_table(adopted[0], name, keep=self._plan.keeps))
                continue
            columns = ", ".join(f"{identifier(w.column.name)} {w.staged}" for w in wires(load))
            if self._plan.by_attempt:
                columns += f", {PART} bigint not null"
            head = f"create unlogged table {'if not exists ' if self._plan.keeps else ''}{name}"
            self._session.execute(f"{head} ({columns}) with (autovacuum_enabled = false)")

    # ------------------------------------------------------------ tasks

    def sink(self, table: int) -> Sink:
        load = self._plan.tables[table]
        run = self._plan.run
        return PostgresSink(
            conninfo=self._conninfo,
            application=f"{run.application_name}{leases.SINK_SUFFIX}",
            run_id=run.run_id,
            table=table,
            staging=leases.staging_name(run.run_id, table),
            wires=wires(load),
            keys=self._plan.key_columns,
            place=str(load.table),
            by_attempt=self._plan.by_attempt,
        )

    def staged(self) -> list[Receipt]:
        if self._session.connection.closed:
            self._session = self._connect()
        return leases.receipts(self._session, self._plan.run.run_id)

    # ------------------------------------------------------------ the commit

    def commit(self, receipts: Sequence[Receipt]) -> LoadResult:
        self._revive()
        session = self._session
        counts = Counts()
        staged: dict[int, int] = {}
        isolation = "repeatable read" if self._plan.native_query is not None else "read committed"
        session.execute(f"begin isolation level {isolation}")
        session.execute(f"set local work_mem = {literal(WORK_MEM)}")
        try:
            failpoint("commit.begin")
            self._lock_targets()
            check_source(session, self._plan)
            check_watermark(session, self._plan)
            for number, load in enumerate(self._plan.tables):
                staged[number] = self._bring_in(number, load, receipts, counts)
            record_load(session, self._plan, staged)
            failpoint("commit.loaded")
        except BaseException:  # Ctrl-C too: no transaction stays open
            self._roll_back()
            raise
        done = result(counts, sum(staged.values()))
        self._send_commit(done)
        failpoint("commit.done")
        self._clean_up()
        return done

    def _bring_in(self, number: int, load: TableLoad, receipts: Sequence[Receipt], counts: Counts) -> int:
        session = self._session
        self._make_raw(number, receipts)
        rows = int(session.query(f"select count(*) from {RAW}")[0][0])
        if self._plan.native_query is None:
            check_staged(load, rows, [receipt for receipt in receipts if receipt.table == number])
        if load.adopt:
            self._adopt(number, load)
            counts.add("inserted", rows)
        elif self._prove_keys(number, load):
            load = replace(load, steps=tuple(s for s in load.steps if not (isinstance(s, Check) and s.key)))
        run_steps(session, load, counts, savepoints=True)
        self._drop_raw()
        return rows

    def _prove_keys(self, number: int, load: TableLoad) -> bool:
        """Make the keys a key of staging: cheaper than to group by them, and the merge can use it."""
        keys = next((step.key for step in load.steps if isinstance(step, Check) and step.key), ())
        direct = {staged.column.name for staged in load.columns if staged.native.direct and not staged.native.valid}
        if not keys or not direct.issuperset(keys) or self._plan.native_query is not None or self._plan.by_attempt:
            return False
        staging = identifier(leases.staging_name(self._plan.run.run_id, number))
        columns = ", ".join(identifier(key) for key in keys)
        self._session.savepoint()
        try:
            self._session.execute(f"alter table _penstock.{staging} add primary key ({columns})")
        except PenstockError:
            # Not a key, or too wide to be indexed: the checks will tell.
            self._session.rollback_to_savepoint()
            return False
        # Rows that came in the order of their key are merged in that order, once the planner knows.
        self._session.execute(f"analyze _penstock.{staging} ({columns})")
        return True

    def _make_raw(self, number: int, receipts: Sequence[Receipt]) -> None:
        if self._plan.native_query is None:
            staging = f"_penstock.{identifier(leases.staging_name(self._plan.run.run_id, number))}"
            if self._session.query("select to_regclass(%s)", (staging,))[0][0] is None:
                raise StagingLost(
                    "the run's staging table is not there any more",
                    kept="nothing was committed",
                    remedy="run it again",
                    place=str(self._plan.tables[number].table),
                )
            columns = ", ".join(identifier(s.column.name) for s in self._plan.tables[number].columns)
            sql = f"create temp view {RAW} as select {columns} from {staging}"
            if self._plan.by_attempt:
                # What an attempt has staged that Spark then called failed must not count.
                parts = ", ".join(str(receipt.part) for receipt in receipts if receipt.table == number)
                sql += f" where {PART} = any ('{{{parts}}}'::pg_catalog.int8[])"
            self._session.execute(sql)
            return
        query = trimmed(self._plan.native_query)
        self._session.execute(f"create temp table {RAW} as\n{query}\nwith no data")
        self._forget_collations()
        # A source is only read, here too: a function that writes is refused. Released, the
        # savepoint gives the transaction back its own mode.
        self._session.execute("savepoint penstock_read")
        self._session.execute("set transaction read only")
        self._session.execute(f"insert into {RAW}\n{query}")
        self._session.execute("release savepoint penstock_read")

    def _forget_collations(self) -> None:
        """Keys are compared as the target does: the source's own collation would have a say, or a veto."""
        columns = self._session.query(
            "select a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod)"
            " from pg_catalog.pg_attribute a join pg_catalog.pg_collation c on c.oid = a.attcollation"
            " where a.attrelid = %s::pg_catalog.regclass and c.collname <> 'default'",
            (f"pg_temp.{RAW}",),
        )
        for name, type_sql in columns:
            change = f'alter column {identifier(name)} type {type_sql} collate pg_catalog."default"'
            self._session.execute(f"alter table pg_temp.{RAW} {change}")

    def _lock_targets(self) -> None:
        """Before the first look at anything, which would fix a native load's snapshot.

        A merge without a unique index races with other writers, and a row that they add after the
        snapshot would not be seen.
        """
        for load in self._plan.tables:
            if load.lock and not load.adopt:
                self._session.execute(f"lock table {qualified(load.table)} in share row exclusive mode")

    def _drop_raw(self) -> None:
        """The next table needs the names, and a view left behind would hold the staging table."""
        rows = self._session.query(
            "select relname::text, relkind::text from pg_catalog.pg_class"
            " where relnamespace = pg_catalog.pg_my_temp_schema()"
            " and relkind in ('v', 'r') and pg_catalog.starts_with(relname::text, '_penstock_') order by relname desc"
        )
        for name, kind in rows:
            what = "view" if kind == "v" else "table"
            self._session.execute(f"drop {what} if exists pg_temp.{identifier(name)} cascade")

    def _adopt(self, number: int, load: TableLoad) -> None:
        session = self._session
        staging = identifier(leases.staging_name(self._plan.run.run_id, number))
        for ddl in load.adopt:
            if not isinstance(ddl, CreateTable):
                for statement in render(ddl):
                    session.execute(statement)
                continue
            schema = identifier(ddl.table.schema or self._config.schema_)
            if self._gives_privileges(ddl.table.schema or self._config.schema_):
                # They come with CREATE TABLE only; a table that moves in would be closed to its readers.
                columns = ", ".join(identifier(staged.column.name) for staged in load.columns)
                session.execute(create_table(ddl, qualified(ddl.table)))
                session.execute(
                    f"insert into {qualified(ddl.table)} ({columns}) select {columns} from _penstock.{staging}"
                )
                continue
            session.execute(f"alter table _penstock.{staging} set schema {schema}")
            session.execute(f"alter table {schema}.{staging} rename to {identifier(ddl.table.table)}")

    def _gives_privileges(self, schema: str) -> bool:
        """Whether tables that this user makes in the schema get default privileges."""
        return bool(
            self._session.query(
                "select 1 from pg_catalog.pg_default_acl where defaclobjtype = 'r'"
                " and pg_catalog.pg_has_role(defaclrole, 'usage')"
                " and defaclnamespace in (0, (select oid from pg_catalog.pg_namespace where nspname = %s))",
                (schema,),
            )
        )

    def _send_commit(self, done: LoadResult) -> None:
        try:
            self._session.connection.execute("commit")
            self.result = done
        except psycopg.Error as error:
            if not self._session.connection.closed and error.sqlstate is not None and not _is_away(error):
                # The server answered, and the answer is no: a deferred constraint, for one.
                self._roll_back()
                raise refused(error, self._conninfo, side=TargetError) from error
            self._look_for_answer(done, error)
        except BaseException as stop:
            # An interrupt while the answer was on its way: the load may be there all the same.
            if self.result is None:
                try:
                    self._look_for_answer(done, stop)
                except LinkLost:
                    raise stop from None
            raise

    def _look_for_answer(self, done: LoadResult, error: BaseException) -> None:
        """COMMIT was sent, its answer is lost. Only the target knows."""
        old = self._session.connection.info.backend_pid if not self._session.connection.closed else self._backend
        self._session.connection.close()
        run = self._plan.run
        try:
            for attempt in Retrying(
                retry=retry_if_exception_type(LinkLost),
                stop=stop_after_delay(ANSWER_SECONDS),
                wait=wait_exponential(0.1, max=3),
                reraise=True,
            ):
                with attempt:
                    self._session = self._connect()
                    self._retake(old)
                    if was_committed(self._session, run.run_id):
                        self.result = done
        except BaseException as lost:  # a second Ctrl-C too
            if self.result is not None:
                raise
            # Not a transient error: another attempt could load everything twice.
            raise TargetError(
                "the answer to COMMIT was lost, and the target cannot be asked",
                why=f"{lost}" if isinstance(lost, PenstockError) else type(lost).__name__,
                kept=f"unknown: run {run.run_id} is committed if it has a row in _penstock.loads",
                remedy=f"when the target is back: select * from _penstock.loads where run = '{run.run_id}'",
            ) from error
        if self.result is None:
            raise LinkLost(
                "the link broke during COMMIT", why="the target has no row of this run", kept="nothing was committed",
                remedy="run it again",
            ) from error  # fmt: skip

    def _retake(self, old: int) -> None:
        """Hold the run's lock again: until the old session is gone, its COMMIT may still happen."""
        run = self._plan.run
        self._session.query(
            "select pg_catalog.pg_terminate_backend(pid) from pg_catalog.pg_stat_activity"
            " where pid = %s and application_name = %s",
            (old, run.application_name),
        )
        if not leases.await_lock(self._session, f"run:{run.run_id}", leases.GONE_SECONDS):
            raise LinkLost("the run's old session does not end", why=f"backend {old} still holds the run's lock")

    def _revive(self) -> None:
        """The locks' session may be gone after a restart of the server. Then all is claimed anew."""
        self._backend = 0
        if not self._session.connection.closed:
            try:
                self._session.query("select 1")
            except LinkLost:
                self._session.connection.close()
        if self._session.connection.closed or self._plan.keeps:
            self._session.connection.close()
            self._session = self._connect()
            leases.claim(self._session, self._plan)
        self._backend = self._session.connection.info.backend_pid

    def _roll_back(self) -> None:
        connection = self._session.connection
        if connection.closed or connection.info.transaction_status is TransactionStatus.IDLE:
            return
        try:
            connection.execute("rollback")
        except psycopg.Error:
            # The server rolls back by itself when the session ends.
            connection.close()

    # ------------------------------------------------------------ the ways out

    def abort(self) -> None:
        if self.result is not None or self._closed:
            return
        try:
            self._roll_back()
            if self._session.connection.closed:
                self._session = self._connect()
                leases.claim(self._session, self._plan)
            leases.end_sessions(self._session, f"{self._plan.run.application_name}{leases.SINK_SUFFIX}")
            leases.remove(self._session, self._plan.run.run_id)
        except PenstockError as error:
            # What is left has a lease without a live holder: the next run sweeps it.
            log.warning("staging is left for the next run", run=self._plan.run.run_id, why=error.what)

    def close(self) -> None:
        self._closed = True
        self._session.connection.close()

    def _clean_up(self) -> None:
        """After the commit. The load is done, whatever happens here."""
        try:
            leases.remove(self._session, self._plan.run.run_id)
        except PenstockError as error:
            log.warning("staging is left for the next run", run=self._plan.run.run_id, why=error.what)


def wires(load: TableLoad) -> tuple[Wire, ...]:
    return tuple(Wire(staged.column, staging_type(staged.column, staged.native)) for staged in load.columns)


def _is_away(error: psycopg.Error) -> bool:
    state = error.sqlstate or ""
    return state.startswith(("08", "57P0"))
