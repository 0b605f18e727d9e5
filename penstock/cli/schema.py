"""`penstock schema`: what `penstock.toml` may hold, for an editor's language server.

It is made from the installed backends, so that those of other packages are in it. No host is asked
for it: the file that an editor reads lies beside the project.
"""

from __future__ import annotations

import json

import typer

FILE = "penstock.schema.json"
DIRECTIVE = f"#:schema ./{FILE}"  # what taplo and tombi, the language servers of TOML, look for


def schema() -> None:
    """Print the JSON Schema of penstock.toml, for editors."""
    typer.echo(text(), nl=False)


def text() -> str:
    """The schema as a file holds it."""
    from penstock.project import json_schema

    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
