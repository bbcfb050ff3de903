from __future__ import annotations

import pickle

import pytest

from epochal.connectors.table_columns import ColumnMatch, TableColumn, match_columns
from epochal.errors import TableMismatchError

ID, NAME = TableColumn("id", "long"), TableColumn("name", "string")


def matched(*query: TableColumn, table: list[TableColumn], may_add: bool = False) -> ColumnMatch:
    return match_columns("t", query, table, may_add=may_add, to_add="Set mergeSchema.")


def refused(*query: TableColumn, table: list[TableColumn], may_add: bool = False) -> list[str]:
    with pytest.raises(TableMismatchError) as error:
        matched(*query, table=table, may_add=may_add)
    return list(error.value.reasons)


def test_columns_may_have_another_order_than_in_the_table() -> None:
    assert matched(NAME, ID, table=[ID, NAME]) == ColumnMatch((), ())


def test_a_column_of_the_table_only_stays_null() -> None:
    assert matched(ID, table=[ID, NAME]) == ColumnMatch((), ())


def test_a_column_that_takes_no_nulls_must_be_in_the_query_or_have_a_default() -> None:
    needed = TableColumn("name", "string", required=True)
    assert refused(ID, table=[ID, needed]) == [
        "column name (string) must have a value in the table, but the query has no such column. "
        "Add it to the query, or let the table take nulls."
    ]
    filled = TableColumn("name", "string", required=True, has_default=True)
    assert matched(ID, table=[ID, filled]) == ColumnMatch((), ())
    assert matched(ID, NAME, table=[ID, needed]).required == ("name",)


def test_a_column_of_the_query_only_is_refused_unless_columns_may_be_added() -> None:
    assert refused(ID, NAME, table=[ID]) == [
        "column name (string) does not exist in the table. Set mergeSchema."
    ]
    assert matched(ID, NAME, table=[ID], may_add=True) == ColumnMatch((NAME,), ())


def test_a_refusal_names_both_types_of_every_column_that_differs() -> None:
    found = refused(ID, NAME, table=[TableColumn("id", "integer"), TableColumn("name", "date")])
    assert found == [
        "column id is long in the query, but integer in the table. Cast it in the query, or "
        "change the table.",
        "column name is string in the query, but date in the table. Cast it in the query, or "
        "change the table.",
    ]


def test_a_format_can_take_values_of_other_types() -> None:
    def fits(query: str, table: str) -> bool:
        return (query, table) == ("integer", "long") or query == table

    small, large = TableColumn("id", "integer"), TableColumn("id", "long")
    match_columns("t", [small], [large], may_add=False, to_add="", fits=fits)
    with pytest.raises(TableMismatchError, match="is long in the query, but integer in the table"):
        match_columns("t", [large], [small], may_add=False, to_add="", fits=fits)


def test_names_that_differ_in_case_only_are_refused_and_never_added() -> None:
    found = refused(TableColumn("ID", "long"), table=[ID], may_add=True)
    assert found == ["column ID of the query is id in the table. Rename it in the query."]
    assert refused(ID, TableColumn("Id", "long"), table=[ID], may_add=True)[0] == (
        "the query has columns with the same name, apart from upper and lower case: id, Id. "
        "Rename them."
    )


def test_a_refusal_survives_the_way_from_a_worker() -> None:
    error = TableMismatchError("t", ("a", "b"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error) == "The query cannot write to t. Nothing was written.\n  - a\n  - b"
