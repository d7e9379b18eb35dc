"""The Arrow schema of a Spark schema, in every version of pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a DataFrame's rows, with timestamps in UTC.

    Args:
        schema: The schema of the DataFrame.
    """
    convert: Any = to_arrow_schema
    try:
        return convert(schema, timezone="UTC")
    except TypeError:  # some older ones always means UTC
        return convert(schema)
