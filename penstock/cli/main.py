"""The entry point: global options, signals and the one place where errors leave the program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import (
    add,
    connections,
    context,
    demo,
    doctor,
    init,
    jars,
    plan,
    replicate,
    replications,
    run,
    runs,
    schema,
    signals,
    tables,
    validate,
)

PROJECT_FLAG = "--project"

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help answers in half the time of a drawn one
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("init", short_help="Start a project that runs as it stands.")(init.init)
app.command("add", short_help="Write a pipeline by looking at a table.")(add.add)
app.command("run", short_help="Run pipelines.")(run.run)
app.command("plan", short_help="Show what a run would do, and why.")(plan.plan)
app.command("replicate", short_help="Keep tables of another database up to date.")(replicate.replicate)
app.command("validate", short_help="Check pipelines against both ends.")(validate.validate)
app.add_typer(replications.app, name="replications")
app.add_typer(runs.app, name="runs")
app.add_typer(connections.app, name="connections")
app.add_typer(tables.app, name="tables")
app.add_typer(jars.app, name="jars")
app.command("schema", short_help="Print the JSON Schema of penstock.toml.")(schema.schema)
app.command("doctor", short_help="Check this machine and the project.")(doctor.doctor)
app.command("demo", short_help="See it work, in about a minute.")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def _penstock(
    ctx: typer.Context,
    project: Annotated[
        Path | None,
        typer.Option(
            PROJECT_FLAG, metavar="PATH", envvar="PENSTOCK_PROJECT", help="The project's folder or its penstock.toml."
        ),
    ] = None,
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Move data between databases and files, in batch and change by change, exactly once and exactly as it was."""
    ctx.obj = context.Invocation(project)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 usage, 3 changes found, 128 + n signal n."""
    words = project_first(sys.argv[1:] if arguments is None else arguments)
    context.start()
    try:
        with signals.once():
            app(args=words, prog_name="penstock")
    except SystemExit as stop:
        code = stop.code
        if code == signals.INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            from penstock.cli import errors

            code = errors.show_interrupted(signals.received())
    except Exception as error:  # noqa: BLE001  the last door: no traceback leaves the program
        from penstock.cli import errors

        code = errors.show(error)
    sys.exit(code)


def project_first(words: list[str]) -> list[str]:
    """`--project` belongs to the whole command line: let it stand anywhere in it."""
    moved: list[str] = []
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            rest += [word, *remaining]
        elif word == PROJECT_FLAG:
            moved += [word, *([value] if (value := next(remaining, None)) is not None else [])]
        elif word.startswith(f"{PROJECT_FLAG}="):
            moved.append(word)
        else:
            rest.append(word)
    return moved + rest


if __name__ == "__main__":
    main()
