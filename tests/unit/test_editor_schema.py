"""The JSON Schema in the language servers that editors run: what the loader takes passes, mistakes are shown.

taplo and tombi are the checkers behind the TOML plug-ins of editors; both find the schema by the
`#:schema` line of a project. Nothing is fetched: the schema lies beside the file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import schema
from penstock.errors import ConfigError
from penstock.project import load

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
TOOLS = {"taplo": ["lint", "--no-auto-config"], "tombi": ["lint", "--offline", "--no-cache"]}
PROJECTS = {
    "init": ROOT / "penstock" / "scaffold" / "project" / "penstock.toml",
    "demo": ROOT / "penstock" / "demo" / "project" / "penstock.toml",
    **{path.parent.name: path for path in sorted((ROOT / "examples").rglob("penstock.toml"))},
}

# References where a number, a truth value, a choice or a size belongs: the loader fills them in.
REFERENCES = """
[connections.shop]
type = "postgres"
host = "${SHOP_HOST:-localhost}"
port = "${SHOP_PORT:-5432}"
dbname = "shop"

[connections.warehouse]
type = "duckdb"
path = "${HOME}/warehouse.duckdb"
read_only = "${READ_ONLY:-false}"

[connections.elsewhere]
type = "${ELSEWHERE:-duckdb}"
path = "elsewhere.duckdb"

[pipelines.orders]
source = "shop"
table = "public.orders"
target = { connection = "warehouse", table = "orders" }
mode = "${MODE:-merge}"
parallel = "${WORKERS:-4}"
allow_empty = "${ALLOW:-false}"
max_delete_ratio = "${RATIO:-0.5}"
incremental = "id"
lag = 10

[pipelines.orders.columns]
price = "decimal(38,9)"
id = { rename = "order_id" }

[replications.shop]
source = "shop"
target = "warehouse"
tables = ["public.*", "!public.audit_*"]
deletes = "${DELETES:-soft}"
slot = "${SLOT:-mine}"
flush_interval_ms = "${FLUSH:-50}"

[replications.shop.options."public.orders"]
exclude = ["note"]
rename = { id = "order_id" }

[replications.shop.buffer]
path = "${HOME}/buffer"
max_bytes = "2GB"
keep_copy = "${KEEP:-true}"

[spark]
driver_memory = "${MEMORY:-1g}"
conf."spark.sql.ansi.enabled" = true
"""

GOOD = """
[connections.shop]
type = "postgres"
dsn = "postgresql://localhost/shop"

[pipelines.orders]
source = "shop"
table = "public.orders"
target = "shop.copy.orders"
mode = "merge"
"""

COPIED = """
[replications.r]
source = "shop"
target = "shop"
tables = ["public.*"]
"""

# Each is one mistake in a good file, and the line it is on.
WRONG = {
    "unknown section": (GOOD + "\n[pipeline.x]\n", 12),
    "unknown key": (GOOD + 'key = ["id"]\n', 11),
    "unknown option of a connection": (GOOD.replace("dsn =", "dns ="), 4),
    "wrong choice": (GOOD.replace('"merge"', '"mrege"'), 10),
    "text for a number": (GOOD + 'parallel = "four"\n', 11),
    "number in quotes": (GOOD + 'parallel = "4"\n', 11),
    "truth value in quotes": (GOOD + 'allow_empty = "true"\n', 11),
    "port in quotes": (GOOD.replace('dsn = "postgresql://localhost/shop"', 'port = "5432"'), 4),
    "truth value for a number": (GOOD + "parallel = true\n", 11),
    "number in quotes, in an inner table": (
        GOOD + 'transform = "select 1"\ninputs.x = { source = "shop", table = "a", broadcast = "true" }\n',
        12,
    ),
    "number of Spark in quotes": (GOOD + '\n[spark]\nshuffle_partitions = "8"\n', 13),
    "number out of range": (GOOD + "max_delete_ratio = 1.5\n", 11),
    "number for a truth value": (GOOD + "allow_empty = 1\n", 11),
    "text for a list": (GOOD + 'keys = "id"\n', 11),
    "no such backend": (GOOD.replace('"postgres"', '"postgers"'), 3),
    "unknown key of a replication": (GOOD + COPIED + 'delete = "soft"\n', 16),
    "wrong choice of a replication": (GOOD + COPIED + 'deletes = "mild"\n', 16),
    "number out of range in a replication": (GOOD + COPIED + "flush_rows = 0\n", 16),
    "unknown key of a buffer": (GOOD + COPIED + '[replications.r.buffer]\nfolder = "x"\n', 17),
    "missing key": (GOOD.replace('source = "shop"\n', ""), 6),
}


def lint(tool: str, folder: Path, text: str) -> tuple[bool, str]:
    (folder / schema.FILE).write_text(schema.text())
    file = folder / "penstock.toml"
    file.write_text(text)
    done = subprocess.run(
        [str(BIN / tool), *TOOLS[tool], str(file)], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode == 0, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("project", PROJECTS)
def test_our_own_projects_pass(tool: str, project: str, tmp_path: Path) -> None:
    text = PROJECTS[project].read_text()
    if not text.startswith(schema.DIRECTIVE):
        text = f"{schema.DIRECTIVE}\n{text}"
    passed, said = lint(tool, tmp_path, text)
    assert passed, said


def test_a_new_project_names_its_schema() -> None:
    assert PROJECTS["init"].read_text().startswith(schema.DIRECTIVE + "\n")


@pytest.mark.parametrize("tool", TOOLS)
def test_references_stand_for_any_value(tool: str, tmp_path: Path) -> None:
    passed, said = lint(tool, tmp_path, schema.DIRECTIVE + REFERENCES)
    assert passed, said


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_shown_on_its_line(tool: str, mistake: str, tmp_path: Path) -> None:
    assert lint(tool, tmp_path, schema.DIRECTIVE + GOOD)[0]
    text, line = WRONG[mistake]
    passed, said = lint(tool, tmp_path, schema.DIRECTIVE + text)
    assert not passed
    assert re.search(rf"penstock\.toml:{line}:", said), said


@pytest.mark.parametrize("mistake", WRONG)
def test_what_an_editor_shows_as_a_mistake_is_one_to_the_loader(mistake: str, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(schema.DIRECTIVE + GOOD)
    load(tmp_path).check()
    text, line = WRONG[mistake]
    (tmp_path / "penstock.toml").write_text(schema.DIRECTIVE + text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path).check()
    assert f"penstock.toml:{line}" in str(caught.value)


def test_the_loader_fills_references_in_and_takes_them(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(schema.DIRECTIVE + REFERENCES)
    project = load(tmp_path)
    project.check()
    assert (project.pipelines["orders"].parallel, project.connections.type_of("elsewhere")) == (4, "duckdb")


# ---------------------------------------------------------------- as an editor does it


class Editor:
    """The client's side of the language server protocol, as far as diagnostics need it."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        self.server = server

    def send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.server.stdin is not None
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.server.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next message that is not a question; questions get an empty answer."""
        assert self.server.stdout is not None
        while True:
            length = 0
            while line := self.server.stdout.readline().strip():
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            message: dict[str, Any] = json.loads(self.server.stdout.read(length))
            if "method" not in message or "id" not in message:
                return message
            self.send(id=message["id"], result=None)

    def diagnostics(self, file: Path) -> list[dict[str, Any]]:
        folder = {"uri": file.parent.as_uri(), "name": "project"}
        self.send(
            id="hello",
            method="initialize",
            params={
                "processId": None,
                "rootUri": folder["uri"],
                "workspaceFolders": [folder],
                "capabilities": {"textDocument": {"publishDiagnostics": {}}},
            },
        )
        while self.receive().get("id") != "hello":
            pass
        self.send(method="initialized", params={})
        document = {"uri": file.as_uri(), "languageId": "toml", "version": 1, "text": file.read_text()}
        self.send(method="textDocument/didOpen", params={"textDocument": document})
        while (message := self.receive()).get("method") != "textDocument/publishDiagnostics":
            pass
        found: list[dict[str, Any]] = message["params"]["diagnostics"]
        return found


@contextmanager
def editor() -> Iterator[Editor]:
    server = subprocess.Popen(
        [str(BIN / "tombi"), "lsp", "--offline"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with server:
        try:
            yield Editor(server)
        finally:
            server.kill()


def test_the_language_server_marks_the_mistake_in_the_open_file(tmp_path: Path) -> None:
    (tmp_path / schema.FILE).write_text(schema.text())
    file = tmp_path / "penstock.toml"
    file.write_text(schema.DIRECTIVE + WRONG["wrong choice"][0])
    with editor() as opened:
        found = opened.diagnostics(file)
    assert {one["range"]["start"]["line"] + 1 for one in found} == {10}
    assert any('"mrege"' in one["message"] for one in found)
