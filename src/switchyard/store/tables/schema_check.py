"""Compare the schema of a database with the schema that this version needs, and name each difference.

A revision only says which migrations ran. An operator may have dropped an index, or an early version may have made the
same revision with fewer columns. Does not import Alembic: that takes longer than a server takes to start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateIndex, CreateTable, DropIndex, ExecutableDDLElement

from switchyard.errors import Conflict
from switchyard.store.feature import all_tables

INVALID = " (INVALID)"  # of an index that PostgreSQL did not finish
# Alembic's table, and the mark of a restored database (store/tables/restore_recovery.py): not part of the schema.
IGNORED_TABLES = frozenset({"alembic_version", "restored"})
REPAIR = "Back the database up, then run `yard db upgrade` with the same --data or --database: it repairs this."
NO_REPAIR = (
    "`yard db upgrade` has no repair for all of this. Undo what was changed by hand, restore a backup from before it, "
    "or start on an empty database."
)

_SQLITE_COLUMNS = """
    SELECT t.name, c.name, c.type, NOT c."notnull", c.dflt_value IS NOT NULL, c.pk
    FROM sqlite_master t JOIN pragma_table_info(t.name) c
    WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite~_%' ESCAPE '~'
"""
_SQLITE_INDEXES = """
    SELECT t.name, i.name, i."unique", i.origin, 1, m.sql,
        (SELECT group_concat(name) FROM (SELECT name FROM pragma_index_info(i.name) ORDER BY seqno))
    FROM sqlite_master t JOIN pragma_index_list(t.name) i
        LEFT JOIN sqlite_master m ON m.type = 'index' AND m.name = i.name
    WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite~_%' ESCAPE '~'
"""
_POSTGRESQL_COLUMNS = """
    SELECT t.relname, a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull,
        a.atthasdef OR a.attidentity <> '', coalesce(array_position(k.conkey, a.attnum), 0)
    FROM pg_class t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype = 'p'
    WHERE t.relkind IN ('r', 'p') AND t.relnamespace = current_schema()::regnamespace
"""
_POSTGRESQL_INDEXES = """
    SELECT t.relname, i.relname, x.indisunique, CASE WHEN x.indisprimary THEN 'pk' ELSE 'c' END, x.indisvalid,
        pg_get_indexdef(i.oid), NULL
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
    WHERE t.relnamespace = current_schema()::regnamespace
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """`is_harmful`: this version cannot work with it. `repairs`: the statements that repair it, if that is possible."""

    what: str
    is_harmful: bool = True
    repairs: tuple[ExecutableDDLElement, ...] = ()


@dataclass(frozen=True, slots=True)
class _Column:
    type: str
    is_nullable: bool
    has_default: bool
    key: int  # its place in the primary key; 0: not part of it


@dataclass(slots=True)
class _Catalogue:
    """The schema of a database. `uniques`: the table and columns of each unique index without a condition."""

    columns: dict[str, dict[str, _Column]] = field(default_factory=dict)
    indexes: dict[str, tuple[str, str]] = field(default_factory=dict)  # name → table, definition
    uniques: set[tuple[str, str]] = field(default_factory=set)


def compare(tx: Connection) -> list[Difference]:
    """Return every difference between the database and the schema of this version, harmful ones first."""
    catalogue = _read_catalogue(tx)
    differences: list[Difference] = []
    for table in all_tables().sorted_tables:
        columns = catalogue.columns.get(table.name)
        if columns is None:
            repairs: list[ExecutableDDLElement] = [CreateTable(table), *map(CreateIndex, _sorted(table.indexes))]
            differences.append(Difference(f"the table {table.name} is missing", repairs=tuple(repairs)))
            continue
        differences += _compare_columns(tx, table, columns)
        differences += _compare_indexes(tx, table, catalogue)
    differences += _unknown_objects(catalogue)
    return sorted(differences, key=lambda difference: not difference.is_harmful)


def refuse_harmful(differences: Iterable[Difference]) -> None:
    """Refuse a database that this version cannot work with. The error names each harmful difference."""
    harmful = [difference for difference in differences if difference.is_harmful]
    if not harmful:
        return
    listed = "\n".join(f"  - {difference.what}" for difference in harmful)
    raise Conflict(
        f"The schema of the database is not the one that this version needs:\n{listed}",
        next_step=REPAIR if all(difference.repairs for difference in harmful) else NO_REPAIR,
    )


def refuse_taken_names(tx: Connection) -> None:
    """Refuse a database that has tables with our names but no revision: they belong to another program."""
    taken = sorted(all_tables().tables.keys() & _read_catalogue(tx).columns.keys())
    if taken:
        raise Conflict(
            f"The database has no revision, and yet tables with names that we need: {', '.join(taken)}.",
            next_step="Is it another program's? Give Switchyard a database, or on PostgreSQL a schema, of its own.",
        )


def repair(tx: Connection) -> list[str]:
    """Repair missing tables, nullable columns and indexes. Returns what was repaired.

    Refuses, and changes nothing, if a harmful difference would remain.
    """
    differences = [difference for difference in compare(tx) if difference.is_harmful]
    refuse_harmful(difference for difference in differences if not difference.repairs)
    for difference in differences:
        for statement in difference.repairs:
            tx.execute(statement)
    refuse_harmful(compare(tx))
    return [difference.what for difference in differences]


def _compare_columns(tx: Connection, table: sa.Table, actual_columns: Mapping[str, _Column]) -> Iterator[Difference]:
    for column in table.columns:
        name, wanted = f"{table.name}.{column.name}", _type(tx, column)
        actual = actual_columns.get(column.name)
        if actual is None:
            yield Difference(f"the column {name} ({wanted}) is missing", repairs=_add_column(tx, table, column))
            continue
        if actual.type != wanted:
            widening = _statement(f'ALTER TABLE "{table.name}" ALTER COLUMN "{column.name}" TYPE {wanted}')
            is_widening = tx.dialect.name == "postgresql" and (actual.type, wanted) == ("INTEGER", "BIGINT")
            yield Difference(
                f"the column {name} is of type {actual.type}, not {wanted}", repairs=(widening,) if is_widening else ()
            )
        if actual.is_nullable and not column.nullable:
            yield Difference(f"the column {name} may be NULL, and should not be", is_harmful=False)
        if column.nullable and not actual.is_nullable:
            yield Difference(f"the column {name} may not be NULL, and must be allowed to be")
    key = [name for _, name in sorted((column.key, name) for name, column in actual_columns.items() if column.key)]
    if key != (wanted_key := [column.name for column in table.primary_key]):
        yield Difference(f"the primary key of {table.name} is ({', '.join(key)}), not ({', '.join(wanted_key)})")
    for name in sorted(actual_columns.keys() - table.columns.keys()):
        blocks = not actual_columns[name].is_nullable and not actual_columns[name].has_default
        why = "not known, and a row cannot be added without a value for it" if blocks else "not known"
        yield Difference(f"the column {table.name}.{name} is {why}", is_harmful=blocks)


def _add_column(tx: Connection, table: sa.Table, column: sa.Column[object]) -> tuple[ExecutableDDLElement, ...]:
    """Return the statement that adds a column. Stored rows have no value for it, so it must be nullable."""
    if not column.nullable:
        return ()
    return (_statement(f'ALTER TABLE "{table.name}" ADD COLUMN "{column.name}" {_type(tx, column)}'),)


def _compare_indexes(tx: Connection, table: sa.Table, catalogue: _Catalogue) -> Iterator[Difference]:
    for index in _sorted(table.indexes):
        name = str(index.name)
        wanted = _normalised(str(CreateIndex(index).compile(dialect=tx.dialect)))
        owner, actual = catalogue.indexes.get(name, ("", ""))
        if not owner:
            yield Difference(f"the index {name} on {table.name} is missing", repairs=(CreateIndex(index),))
        elif owner != table.name:
            yield Difference(f"the index {name} is on {owner}, not on {table.name}")
        elif actual != wanted:
            yield Difference(
                f"the index {name} on {table.name} is «{actual}», not «{wanted}»",
                is_harmful=_without_condition(actual) != _without_condition(wanted),
                repairs=(DropIndex(index), CreateIndex(index)),
            )
    for constraint in table.constraints:
        if isinstance(constraint, sa.UniqueConstraint):
            columns = ",".join(column.name for column in constraint.columns)
            if (table.name, columns) not in catalogue.uniques:
                yield Difference(f"the rule that {table.name} ({columns}) is unique is missing")


def _without_condition(definition: str) -> str:
    """Versions of PostgreSQL print conditions differently. A different condition makes queries slow, not wrong."""
    columns, where, _ = definition.partition(" WHERE ")
    return definition if definition.endswith(INVALID) else columns + where


def _unknown_objects(catalogue: _Catalogue) -> Iterator[Difference]:
    """Name tables and indexes that are not ours. They are harmless, but an operator should know of them."""
    for name in sorted(catalogue.columns.keys() - all_tables().tables.keys() - IGNORED_TABLES):
        yield Difference(f"the table {name} is not known", is_harmful=False)
    known = {str(index.name) for table in all_tables().tables.values() for index in table.indexes}
    for table in all_tables().tables.values():
        known |= {str(item.name) for item in table.constraints if isinstance(item, sa.UniqueConstraint)}
    for name, (table_name, definition) in sorted(catalogue.indexes.items()):
        if name not in known and table_name in all_tables().tables:
            rule = "a unique index may refuse rows" if definition.startswith("UNIQUE") else ""
            yield Difference(f"the index {name} on {table_name} is not known{rule and f': {rule}'}", is_harmful=False)


def _read_catalogue(tx: Connection) -> _Catalogue:
    is_sqlite = tx.dialect.name == "sqlite"
    catalogue = _Catalogue()
    for table, name, kind, nullable, has_default, key in tx.exec_driver_sql(
        _SQLITE_COLUMNS if is_sqlite else _POSTGRESQL_COLUMNS
    ):
        column = _Column(kind.upper(), bool(nullable), bool(has_default), int(key))
        catalogue.columns.setdefault(table, {})[name] = column
    for table, name, is_unique, origin, is_valid, text, columns in tx.exec_driver_sql(
        _SQLITE_INDEXES if is_sqlite else _POSTGRESQL_INDEXES
    ):
        if origin == "pk":
            continue
        definition = _normalised(text) if text else ""
        if is_unique and "WHERE" not in definition:
            catalogue.uniques.add((table, columns or definition.removeprefix("UNIQUE ").replace(", ", ",")))
        if text:  # SQLite stores no definition for the index of a UNIQUE constraint
            catalogue.indexes[name] = (table, definition if is_valid else f"{definition}{INVALID}")
    return catalogue


def _normalised(definition: str) -> str:
    """Return the definition of an index in a form common to both databases: `UNIQUE a, b DESC WHERE condition`."""
    head, _, body = definition.partition("(")
    body = body.replace('"', "").replace("::text", "")
    body = re.sub(r"= ANY \(ARRAY\[(.*?)\]\)", r"IN (\1)", body)
    body = " ".join(re.sub(r"[()]", " ", body).split()).replace(" ,", ",")
    return f"UNIQUE {body}" if head.split()[1].upper() == "UNIQUE" else body


def _type(tx: Connection, column: sa.Column[object]) -> str:
    name = column.type.compile(dialect=tx.dialect).upper()
    return "DOUBLE PRECISION" if tx.dialect.name == "postgresql" and name == "FLOAT" else name


def _statement(text: str) -> ExecutableDDLElement:
    return sa.DDL(text)  # type: ignore[no-untyped-call]


def _sorted(indexes: Iterable[sa.Index]) -> list[sa.Index]:
    return sorted(indexes, key=lambda index: str(index.name))
