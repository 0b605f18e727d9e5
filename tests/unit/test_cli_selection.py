"""Which pipelines a command line means."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.cli.selection import select
from penstock.errors import ConfigError


@dataclass(frozen=True)
class Named:
    name: str
    tags: tuple[str, ...] = ()


PIPELINES = {
    one.name: one
    for one in (Named("customers", ("hourly", "crm")), Named("orders", ("hourly",)), Named("order_lines"), Named("a*b"))
}


@pytest.mark.parametrize(
    ("names", "selectors", "meant"),
    [
        (["orders", "customers"], [], ["orders", "customers"]),
        (["order*"], [], ["orders", "order_lines"]),
        ([], ["tag:hourly"], ["customers", "orders"]),
        (["customers"], ["tag:hourly"], ["customers", "orders"]),
        ([], ["tag:c*"], ["customers"]),
        (["a*b"], [], ["a*b"]),
    ],
)
def test_names_globs_and_tags(names: list[str], selectors: list[str], meant: list[str]) -> None:
    assert [one.name for one in select(PIPELINES, names, selectors)] == meant


def test_all() -> None:
    assert [one.name for one in select(PIPELINES, [], [], everything=True)] == list(PIPELINES)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("custmers", "did you mean 'customers'?"),
        ("tag:weekly", "tags in this project: crm, hourly"),
        ("zzz*", "pipelines: a*b, customers, order_lines, orders"),
    ],
)
def test_unknown_name_is_a_usage_error_with_the_nearest_one(word: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select(PIPELINES, [word], [])
    assert said in caught.value.remedy
    assert caught.value.exit_code == 2


def test_all_of_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match="there are no pipelines"):
        select({}, [], [], everything=True)
