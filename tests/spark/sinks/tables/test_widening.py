"""Types of tables that keep the values of a DataFrame, and those that would change some."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType, _parse_datatype_string

from fanout.errors import OptionError
from fanout.spark.sinks.tables.columns import check_types

pytestmark = pytest.mark.spark


def schema(columns: str) -> StructType:
    found = _parse_datatype_string(columns)
    assert isinstance(found, StructType)
    return found


@pytest.mark.usefixtures("spark")  # the parser is in the JVM
@pytest.mark.parametrize(
    ("rows", "table"),
    [
        ("v tinyint", "v bigint"),
        ("v int", "v double"),
        ("v smallint", "v float"),
        ("v float", "v double"),
        ("v int", "v decimal(12,2)"),
        ("v decimal(10,2)", "v decimal(14,4)"),
        ("v string", "v varchar(3)"),  # Spark refuses longer ones
        ("v void", "v date"),
        ("v int", "v string"),
        ("v decimal(10,2)", "v string"),
        ("v boolean", "v string"),
        ("v date", "v string"),
        (
            "v array<struct<a:int,b:map<string,float>>>",
            "v array<struct<b:map<string,double>,a:bigint>>",
        ),
        ("v timestamp_ntz", "v timestamp_ntz"),
        ("more double", "v int"),
        ("V int", "v int"),
    ],
)
def test_a_type_that_has_each_value_is_taken(rows: str, table: str) -> None:
    check_types(schema(rows), schema(table), "t", exact_case=False)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("rows", "table"),
    [
        ("v double", "v int"),
        ("v bigint", "v int"),
        ("v bigint", "v double"),
        ("v int", "v float"),
        ("v double", "v float"),
        ("v double", "v decimal(38,10)"),
        ("v decimal(10,4)", "v decimal(12,2)"),
        ("v bigint", "v decimal(18,0)"),
        ("v decimal(4,0)", "v bigint"),
        ("v timestamp", "v date"),
        ("v date", "v timestamp"),
        ("v timestamp", "v timestamp_ntz"),
        ("v timestamp", "v string"),
        ("v double", "v string"),
        ("v int", "v varchar(3)"),
        ("v string", "v int"),
        ("v string", "v char(5)"),
        ("v boolean", "v int"),
        ("v array<double>", "v array<int>"),
        ("v map<double,int>", "v map<int,int>"),
        ("v struct<A:double>", "v struct<a:int>"),
    ],
)
def test_a_type_that_may_change_a_value_is_refused(rows: str, table: str) -> None:
    with pytest.raises(OptionError, match=r"the column 'v' is .* in t, which may change a value"):
        check_types(schema(rows), schema(table), "t", exact_case=False)


@pytest.mark.usefixtures("spark")
def test_names_that_differ_in_case_are_two_where_the_session_says_so() -> None:
    check_types(schema("V double"), schema("v int, V double"), "t", exact_case=True)
    check_types(schema("V double"), schema("v int"), "t", exact_case=True)
