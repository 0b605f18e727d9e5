"""Results, plans and findings as small tables for a notebook.

Plain HTML without a script and without a style sheet of its own: it takes the notebook's fonts and
colours, light or dark. Every text is escaped, and masked like all that leaves the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from penstock.observe.redact import redact

if TYPE_CHECKING:
    from penstock.run.records import Finding, PipelinePlan
    from penstock.run.results import TableResult

_LEFT = ' style="text-align:left;vertical-align:top"'
_COLOURS = {"refused": "#c62828", "error": "#c62828", "checked": "#b26a00", "warning": "#b26a00"}


def results_html(results: Sequence[TableResult]) -> str:
    head = ("target", "mode", "path", "rows", "inserted", "updated", "deleted", "seconds")
    rows = [
        [
            _text(one.target),
            _text(one.mode),
            _with_title(one.path, one.plan.path_reason),
            *(_number(count) for count in (one.rows, one.inserted, one.updated, one.deleted)),
            f'<td style="text-align:right">{one.seconds:.1f}</td>',
        ]
        for one in results
    ]
    plans = "".join(_folded(f"plan of {one.target}", plan_html(one.plan)) for one in results)
    return _table(head, rows) + plans


def plan_html(plan: PipelinePlan) -> str:
    facts = [
        ("mode", plan.mode),
        ("path", f"{plan.path}: {plan.path_reason}"),
        ("partitions", f"{plan.partitions}: {plan.partition_reason}"),
    ]
    if plan.watermark_to is not None:
        lower = plan.watermark_from if plan.watermark_from is not None else "the beginning"
        facts.append(("window", f"[{lower}, {plan.watermark_to})"))
    head = f"<div><b>{_safe(plan.pipeline)}</b> &nbsp;{_safe(plan.table)} → {_safe(plan.target)}</div>"
    parts = [head, _table((), [[_text(name), _text(value)] for name, value in facts]), _columns(plan)]
    if plan.refusals:
        parts.append(_listed("refused: this pipeline cannot run as it is", plan.refusals, "refused"))
    if plan.notes:
        parts.append(_listed("notes", plan.notes))
    if plan.ddl:
        parts.append(_folded("DDL", _code(plan.ddl)))
    if plan.sql:
        parts.append(_folded("load SQL", _code(plan.sql)))
    return f'<div style="margin-bottom:1em">{"".join(parts)}</div>'


def findings_html(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<div>nothing found</div>"
    rows = [
        [_verdict(one.severity), *(_text(text) for text in (one.pipeline, one.what, one.why, one.remedy, one.place))]
        for one in findings
    ]
    return _table(("", "pipeline", "what", "why", "next", "place"), rows)


def _columns(plan: PipelinePlan) -> str:
    rows = [
        [
            _text(one.source if one.source == one.target else f"{one.source} → {one.target}"),
            _text(one.source_type),
            _text(one.target_type),
            _verdict(one.verdict),
            _text(one.note),
        ]
        for one in plan.columns
    ]
    return _table(("column", "type", "target type", "verdict", "note"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f"<th{_LEFT}>{_safe(title)}</th>" for title in head)
    top = f"<thead><tr>{titles}</tr></thead>" if head else ""
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f"<table>{top}<tbody>{body}</tbody></table>"


def _listed(title: str, lines: Sequence[str], kind: str = "") -> str:
    colour = f' style="color:{_COLOURS[kind]}"' if kind else ""
    return f"<div{colour}><b>{_safe(title)}</b><ul>{''.join(f'<li>{_safe(line)}</li>' for line in lines)}</ul></div>"


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{_safe(title)}</summary>{inside}</details>"


def _code(statements: Sequence[str]) -> str:
    return f"<pre>{_safe((';' + chr(10) * 2).join(statements))}</pre>"


def _verdict(word: str) -> str:
    colour = f' style="text-align:left;color:{_COLOURS[word]}"' if word in _COLOURS else _LEFT
    return f"<td{colour}>{_safe(word)}</td>"


def _text(text: str) -> str:
    return f"<td{_LEFT}>{_safe(text)}</td>"


def _with_title(text: str, title: str) -> str:
    return f'<td{_LEFT} title="{_safe(title)}">{_safe(text)}</td>'


def _number(count: int) -> str:
    return f'<td style="text-align:right">{count:,}</td>'


def _safe(text: str) -> str:
    return escape(redact(text))
