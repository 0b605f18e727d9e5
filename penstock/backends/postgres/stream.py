"""The link that a slot streams through: one thread owns the socket, reads what comes and answers in time.

Whatever the buffer behind it does, the server hears of us every third of `wal_sender_timeout`: a stalled
writer must not cost the link. What is confirmed is only what the writer has called durable. Of a server that is
silent, as of an idle database, a reply is asked for; if none comes, the link is given up.
"""

from __future__ import annotations

import select
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import generators, pq, waiting

from penstock.backends.change_source import ChangeStream, Scratch
from penstock.backends.changes import Batch, TableVersion
from penstock.backends.postgres import pgoutput
from penstock.backends.postgres.changes import ENDS, Decoder
from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.connect import SETTINGS, DriverSession, identifier, literal
from penstock.backends.postgres.describe import describe
from penstock.backends.postgres.errors import connecting, refused
from penstock.backends.postgres.silence import LOOK_SECONDS, Attention, TooLong, attended
from penstock.errors import LinkLost, PenstockError, SourceError
from penstock.schema import TableName

ANSWERS = 3  # of ours within the server's patience with the link, which is the same as ours with it
CONFIRM_SECONDS = 0.5  # how long a new position may wait to be told
MESSAGES = 20_000  # that are decoded together
WAITING_BYTES = 64 * 1024 * 1024  # that may stand between the socket and the writer
# Of a transaction that is longer, so much at a time: what a server sends whole may be larger than our memory.
PART_BYTES = 32 * 1024 * 1024
IN_USE = "55006"
# How long the capture waits for one transaction's end; then it starts again, and waits for it anew.
VISIBLE_SECONDS = 60.0
_UNSEEN = """
select 1 from pg_catalog.pg_locks
where locktype = 'transactionid' and mode = 'ExclusiveLock' and granted and transactionid = %s::pg_catalog.xid
"""
EPOCH_SECONDS = 946_684_800

_FEEDBACK = struct.Struct(">cQQQQB")
_KEEPALIVE = struct.Struct(">cQQB")
_DATA = ord("w")


def lsn(text: str) -> int:
    """`16/B374D848` as a number."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(number: int) -> str:
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True)
class System:
    """Which server's log it is, and of which life of it."""

    identifier: str
    timeline: int
    flushed: int

    @property
    def origin(self) -> str:
        return f"{self.identifier}/{self.timeline}"


class ReplicationLink:
    """A session that speaks the replication protocol. Not for two threads at once."""

    def __init__(self, conninfo: Conninfo, application: str) -> None:
        self.conninfo = conninfo
        self.answer_every = conninfo.patience / ANSWERS
        text = conninfo.libpq(
            application_name=application, client_encoding="UTF8", replication="database", keepalives_idle="30"
        )
        try:
            # Opened by psycopg, which lets other threads work meanwhile: libpq's own way stops all of them.
            self._connection = psycopg.connect(text, autocommit=True)
        except psycopg.Error as error:
            raise connecting(error, conninfo) from None
        self.pgconn = self._connection.pgconn
        self.pgconn.nonblocking = 1
        self.attention = Attention(conninfo, application, lambda: self.pgconn.backend_pid)
        try:
            for name, value in SETTINGS:
                self.command(f"set {name} to {literal(value)}")
            self.command(f"set wal_sender_timeout to '{conninfo.patience * 1000:.0f}ms'")
        except BaseException:
            self.close()
            raise

    def command(self, text: str, limit: float | None = None) -> list[tuple[str, ...]]:
        """A statement, or a command of the protocol, whose words are upper case. Over the limit raises `TooLong`."""
        result = self._run(text, limit)
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise refused(self._error(result), self.conninfo, side=SourceError)
        return [
            tuple((result.get_value(row, column) or b"").decode() for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def _run(self, text: str, limit: float | None = None) -> pq.abc.PGresult:
        try:
            self.pgconn.send_query(text.encode())
            run = attended(generators.execute(self.pgconn), self.attention, limit)
            results: list[pq.abc.PGresult] = waiting.wait(run, self.pgconn.socket, LOOK_SECONDS)
            return results[-1]
        except TooLong:
            raise
        except psycopg.Error as error:
            raise refused(error, self.conninfo, side=SourceError) from error

    def system(self) -> System:
        [(identifier_, timeline, flushed, _)] = self.command("IDENTIFY_SYSTEM")
        return System(identifier_, int(timeline), lsn(flushed))

    def create_slot(self, name: str, limit: float, *, temporary: bool) -> tuple[int, str]:
        """A slot and the snapshot of its very point: `(consistent point, snapshot)`.

        The snapshot lives until the next command on this link. Waits for every transaction of the server that writes;
        after the limit, raises `TooLong`.
        """
        kind = "TEMPORARY " if temporary else ""
        # Options in parentheses came with 15.
        export = "(SNAPSHOT 'export')" if self.pgconn.server_version >= 150_000 else "EXPORT_SNAPSHOT"
        made = self.command(f"CREATE_REPLICATION_SLOT {identifier(name)} {kind}LOGICAL pgoutput {export}", limit)
        [(_, point, snapshot, _)] = made
        return lsn(point), snapshot

    def start(self, slot: str, position: int, publications: Sequence[str], protocol: int) -> None:
        names = ", ".join(identifier(name) for name in publications)
        options = [f"proto_version {literal(str(protocol))}", f"publication_names {literal(names)}", "messages 'true'"]
        if protocol >= 2:
            options.append("streaming 'on'")
        text = f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {lsn_text(position)} ({', '.join(options)})"
        result = self._run(text)
        if result.status != pq.ExecStatus.COPY_BOTH:
            error = self._error(result)
            if error.sqlstate == IN_USE:
                raise LinkLost(f"the slot {slot} is read by another session", why=str(error).strip())
            raise refused(error, self.conninfo, side=SourceError)

    def confirm(self, received: int, durable: int, *, asking: bool = False) -> None:
        """Tell the server what it need not keep; and ask it to say something."""
        now = int((time.time() - EPOCH_SECONDS) * 1_000_000)
        self.pgconn.put_copy_data(_FEEDBACK.pack(b"r", received, durable, durable, now, asking))
        self.pgconn.flush()

    def close(self) -> None:
        self._connection.close()

    def broken(self) -> PenstockError:
        """Why no more data comes."""
        result = self.pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return refused(self._error(result), self.conninfo, side=SourceError)
        return LinkLost("the server has ended the stream", remedy="it is started again by itself")

    def _error(self, result: pq.abc.PGresult) -> psycopg.Error:
        state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
        kind = psycopg.errors.lookup(state.decode()) if state else psycopg.OperationalError
        return kind(result.error_message.decode(errors="replace"), info=result)


class Receiver(threading.Thread):
    """Owns the socket. Hands over lists of messages that end where nothing is half, or are large."""

    def __init__(self, link: ReplicationLink, start: int) -> None:
        super().__init__(name="penstock-receiver", daemon=True)
        self._link = link
        self._ready: deque[list[bytes]] = deque()
        self._waiting = 0  # bytes in `_ready`
        self._changed = threading.Condition()
        self._stopping = False
        self.error: BaseException | None = None
        self.server_end = start  # how far the server's log goes, as it says
        self.idle_end = start  # up to there the log has nothing that is not durable
        self._durable = start
        self._told = start
        self._received = start
        self._outstanding = 0  # lists handed over whose end is not durable
        self._last_answer = 0.0
        self._half = False  # what was handed over last ends inside of a transaction

    # ------------------------------------------------------------ for the writer

    def take(self, timeout: float) -> tuple[int, list[bytes]]:
        """The next messages, and how many lists they were; none if none came in time. Raises what ended the stream.

        All that waits, as long as it is not much: what is decoded costs by the list as much as by the message.
        """
        with self._changed:
            if not self._ready and self.error is None:
                self._changed.wait(timeout)
            lists, found = 0, list[bytes]()
            while self._ready and len(found) < MESSAGES:
                lists += 1
                found += self._ready.popleft()
            if lists:
                self._waiting -= sum(map(len, found))
                self._changed.notify_all()
            elif self.error is not None:
                raise self.error
            return lists, found

    def durable(self, position: int, lists: int) -> None:
        """Everything up to `position` is on the disk, and `lists` of those taken are done."""
        with self._changed:
            self._durable = max(self._durable, position)
            self._outstanding -= lists

    def stop(self) -> None:
        self._stopping = True
        self.join(self._link.answer_every)

    # ------------------------------------------------------------ the thread

    def run(self) -> None:
        try:
            self._link.attention.heard()
            while not self._stopping:
                self._round()
            self._answer()
        except psycopg.Error as error:
            self._end(refused(error, self._link.conninfo, side=SourceError))
        except BaseException as error:  # noqa: BLE001  the writer raises it
            self._end(error)

    def _end(self, error: BaseException) -> None:
        with self._changed:
            self.error = error
            self._changed.notify_all()

    def _round(self) -> None:
        if self._has_come(CONFIRM_SECONDS / 5):
            self._read_all()
        self._answer_if_due()

    def _has_come(self, within: float) -> bool:
        """Whether the server has said something. If it was asked to and does not, this raises in the end."""
        pgconn, attention = self._link.pgconn, self._link.attention
        readable, _, _ = select.select([pgconn.socket], [], [], within)
        if not readable:
            attention.doubt()
            return False
        attention.heard()
        pgconn.consume_input()
        return True

    def _read_all(self) -> None:
        """What has arrived, up to a place where nothing is half; a transaction that is, is read on."""
        get = self._link.pgconn.get_copy_data
        messages: list[bytes] = []
        whole = size_of_all = 0  # how many of them end where nothing is half; bytes of all
        while True:
            size, data = get(1)
            if size > 0:
                if data[0] == _DATA:
                    if data[pgoutput.HEADER] == pgoutput.MESSAGE:
                        # Nobody's rows. One outside of transactions has no end behind it: what came before would
                        # wait for the end of something that never ends.
                        continue
                    messages.append(bytes(data))
                    size_of_all += size
                    if data[pgoutput.HEADER] in ENDS:
                        whole = len(messages)
                else:
                    self._keepalive(bytes(data), idle=not messages and not self._half)
            elif size == 0:
                if whole == len(messages):
                    break
                self._await_more()
            else:
                raise self._link.broken()
            if size_of_all >= PART_BYTES or (whole == len(messages) and len(messages) >= MESSAGES):
                self._hand_over(messages)
                messages, whole, size_of_all = [], 0, 0
        if messages:
            self._hand_over(messages)

    def _await_more(self) -> None:
        self._has_come(CONFIRM_SECONDS / 5)
        self._answer_if_due()
        if self._stopping:
            raise LinkLost("the capture was stopped", remedy="start it again")

    def _hand_over(self, messages: list[bytes]) -> None:
        size = sum(map(len, messages))
        self._half = messages[-1][pgoutput.HEADER] not in ENDS
        (self._received,) = struct.unpack_from(">Q", messages[-1], 9)
        self.server_end = max(self.server_end, self._received)
        with self._changed:
            # The writer is behind: the socket is left alone, the server is not.
            while self._waiting and self._waiting + size > WAITING_BYTES and not self._stopping:
                self._changed.wait(CONFIRM_SECONDS)
                self._link.attention.heard()  # nobody listens
                self._answer_if_due()
            self._ready.append(messages)
            self._waiting += size
            self._outstanding += 1
            self._changed.notify_all()

    def _keepalive(self, data: bytes, *, idle: bool) -> None:
        _, end, _, asked = _KEEPALIVE.unpack(data)
        self.server_end = max(self.server_end, end)
        with self._changed:
            # Up to there nothing is for us, since every commit that came before is durable.
            if idle and self._outstanding == 0:
                self.idle_end = max(self.idle_end, end)
        if asked:
            self._answer()

    def _answer_if_due(self) -> None:
        since = time.monotonic() - self._last_answer
        if since > self._link.answer_every or (self._durable > self._told and since > CONFIRM_SECONDS):
            self._answer()

    def _answer(self) -> None:
        self._told = self._durable
        self._last_answer = time.monotonic()
        asking = self._link.attention.silent > self._link.answer_every
        self._link.confirm(max(self._received, self._told), self._told, asking=asking)


class PostgresStream(ChangeStream):
    """A slot's changes, decoded. The receiver reads ahead while a batch is decoded."""

    def __init__(
        self,
        link: ReplicationLink,
        catalog: DriverSession,
        slot: str,
        publications: Sequence[str],
        start: int,
        scratch: Scratch,
        known: Mapping[TableName, TableVersion],
    ) -> None:
        self._link = link
        self._system = link.system()
        # Streaming of transactions that are not over came with 14, the second version of the protocol.
        link.start(slot, start, publications, 2)
        self._catalog = catalog
        self._decoder = Decoder(
            lambda relation, before: describe(catalog.query, relation, before), self._await_visible, scratch, known
        )
        self._taken = 0
        self._receiver = Receiver(link, start)
        self._receiver.start()

    @property
    def origin(self) -> str:
        return self._system.origin

    @property
    def source_end(self) -> int:
        return self._receiver.server_end

    @property
    def idle_end(self) -> int:
        return self._receiver.idle_end

    def take(self, timeout: float) -> Batch | None:
        lists, messages = self._receiver.take(timeout)
        if not lists:
            return None
        self._taken += lists
        return self._decoder.feed(messages)

    def _await_visible(self, xid: int) -> None:
        """A commit is in the log, and sent, before others see it: with synchronous standbys long before.

        Until then its transaction holds the lock on its own id.
        """
        deadline = time.monotonic() + VISIBLE_SECONDS
        pause = 0.001
        while self._catalog.query(_UNSEEN, (str(xid),)):
            if time.monotonic() > deadline:
                raise LinkLost(
                    "the source does not end a transaction that it has committed",
                    why="it waits for a synchronous standby, perhaps",
                    kept="what was captured before it",
                    remedy="see wait_event in pg_stat_activity there; it is tried again by itself",
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def durable(self, end: int) -> None:
        taken, self._taken = self._taken, 0
        self._receiver.durable(end, taken)

    def close(self) -> None:
        self._receiver.stop()
        self._link.close()
