"""Tables of records: a public schema, a reader for CSV and Parquet files, and the encoder from rows to vectors.

Nothing here imports torch, and polars is imported when a table is first read.
"""

from alidpfl.tables.schema import Schema, parse_schema, read_schema

__all__ = ["Schema", "parse_schema", "read_schema"]
