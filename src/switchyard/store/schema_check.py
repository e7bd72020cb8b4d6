"""Compare the schema that a database really has with the one this version needs, and name each difference.

A revision only says which migrations ran. Somebody may have dropped an index by hand, or an early version may have made
the same revision with fewer columns. Imports no Alembic: that takes longer than a server takes to start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateIndex, CreateTable, DropIndex, ExecutableDDLElement

from switchyard.errors import Conflict
from switchyard.store.schema import metadata

# Alembic's table, and the mark of a restored database (store/restore_recovery.py): not part of the schema, and never
# reported.
INVALID = " (INVALID)"  # of an index that PostgreSQL did not finish
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
    """`is_harmful`: this version cannot work with it. `repairs`: the statements that put it right, if there are any."""

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
    """What a database has. `uniques`: the table and columns of each unique index without a condition."""

    columns: dict[str, dict[str, _Column]] = field(default_factory=dict)
    indexes: dict[str, tuple[str, str]] = field(default_factory=dict)  # name → table, definition
    uniques: set[tuple[str, str]] = field(default_factory=set)


def compare(tx: Connection) -> list[Difference]:
    """Every difference between the database and the schema of this version, harmful ones first."""
    seen = _read_catalogue(tx)
    found: list[Difference] = []
    for table in metadata.sorted_tables:
        columns = seen.columns.get(table.name)
        if columns is None:
            made: list[ExecutableDDLElement] = [CreateTable(table), *map(CreateIndex, _sorted(table.indexes))]
            found.append(Difference(f"the table {table.name} is missing", repairs=tuple(made)))
            continue
        found += _compare_columns(tx, table, columns)
        found += _compare_indexes(tx, table, seen)
    found += _unknown_objects(seen)
    return sorted(found, key=lambda each: not each.is_harmful)


def refuse_harmful(differences: Iterable[Difference]) -> None:
    """Refuse a database that this version cannot work with; the error names each harmful difference."""
    harmful = [each for each in differences if each.is_harmful]
    if not harmful:
        return
    listed = "\n".join(f"  - {each.what}" for each in harmful)
    raise Conflict(
        f"The schema of the database is not the one that this version needs:\n{listed}",
        next_step=REPAIR if all(each.repairs for each in harmful) else NO_REPAIR,
    )


def refuse_taken_names(tx: Connection) -> None:
    """Refuse a database without a revision that has tables of our names: they are another program's."""
    taken = sorted(metadata.tables.keys() & _read_catalogue(tx).columns.keys())
    if taken:
        raise Conflict(
            f"The database has no revision, and yet tables with names that we need: {', '.join(taken)}.",
            next_step="Is it another program's? Give Switchyard a database, or on PostgreSQL a schema, of its own.",
        )


def repair(tx: Connection) -> list[str]:
    """Put right what can be: missing tables, columns that may be empty, and indexes. Returns what was put right.

    Refuses, and changes nothing, if a harmful difference would remain.
    """
    differences = [each for each in compare(tx) if each.is_harmful]
    refuse_harmful(each for each in differences if not each.repairs)
    for each in differences:
        for statement in each.repairs:
            tx.execute(statement)
    refuse_harmful(compare(tx))
    return [each.what for each in differences]


def _compare_columns(tx: Connection, table: sa.Table, seen: Mapping[str, _Column]) -> Iterator[Difference]:
    for column in table.columns:
        name, wanted = f"{table.name}.{column.name}", _type(tx, column)
        found = seen.get(column.name)
        if found is None:
            yield Difference(f"the column {name} ({wanted}) is missing", repairs=_add_column(tx, table, column))
            continue
        if found.type != wanted:
            widening = _statement(f'ALTER TABLE "{table.name}" ALTER COLUMN "{column.name}" TYPE {wanted}')
            is_widening = tx.dialect.name == "postgresql" and (found.type, wanted) == ("INTEGER", "BIGINT")
            yield Difference(
                f"the column {name} is of type {found.type}, not {wanted}", repairs=(widening,) if is_widening else ()
            )
        if found.is_nullable and not column.nullable:
            yield Difference(f"the column {name} may be NULL, and should not be", is_harmful=False)
        if column.nullable and not found.is_nullable:
            yield Difference(f"the column {name} may not be NULL, and must be allowed to be")
    key = [name for _, name in sorted((each.key, name) for name, each in seen.items() if each.key)]
    if key != (wanted_key := [column.name for column in table.primary_key]):
        yield Difference(f"the primary key of {table.name} is ({', '.join(key)}), not ({', '.join(wanted_key)})")
    for name in sorted(seen.keys() - table.columns.keys()):
        blocks = not seen[name].is_nullable and not seen[name].has_default
        why = "not known, and a row cannot be added without a value for it" if blocks else "not known"
        yield Difference(f"the column {table.name}.{name} is {why}", is_harmful=blocks)


def _add_column(tx: Connection, table: sa.Table, column: sa.Column[object]) -> tuple[ExecutableDDLElement, ...]:
    """Rows that are there have no value for a new column: only one that may be empty can be added."""
    if not column.nullable:
        return ()
    return (_statement(f'ALTER TABLE "{table.name}" ADD COLUMN "{column.name}" {_type(tx, column)}'),)


def _compare_indexes(tx: Connection, table: sa.Table, seen: _Catalogue) -> Iterator[Difference]:
    for index in _sorted(table.indexes):
        name = str(index.name)
        wanted = _normalised(str(CreateIndex(index).compile(dialect=tx.dialect)))
        owner, found = seen.indexes.get(name, ("", ""))
        if not owner:
            yield Difference(f"the index {name} on {table.name} is missing", repairs=(CreateIndex(index),))
        elif owner != table.name:
            yield Difference(f"the index {name} is on {owner}, not on {table.name}")
        elif found != wanted:
            yield Difference(
                f"the index {name} on {table.name} is «{found}», not «{wanted}»",
                is_harmful=_without_condition(found) != _without_condition(wanted),
                repairs=(DropIndex(index), CreateIndex(index)),
            )
    for constraint in table.constraints:
        if isinstance(constraint, sa.UniqueConstraint):
            columns = ",".join(column.name for column in constraint.columns)
            if (table.name, columns) not in seen.uniques:
                yield Difference(f"the rule that {table.name} ({columns}) is unique is missing")


def _without_condition(definition: str) -> str:
    """Each version of PostgreSQL may print a condition in other words. Another one makes queries slow, not wrong."""
    columns, where, _ = definition.partition(" WHERE ")
    return definition if definition.endswith(INVALID) else columns + where


def _unknown_objects(seen: _Catalogue) -> Iterator[Difference]:
    """What somebody else put there. It does no harm; an operator should know of it."""
    for name in sorted(seen.columns.keys() - metadata.tables.keys() - IGNORED_TABLES):
        yield Difference(f"the table {name} is not known", is_harmful=False)
    known = {str(index.name) for table in metadata.tables.values() for index in table.indexes}
    for table in metadata.tables.values():
        known |= {str(each.name) for each in table.constraints if isinstance(each, sa.UniqueConstraint)}
    for name, (table_name, definition) in sorted(seen.indexes.items()):
        if name not in known and table_name in metadata.tables:
            rule = "a unique index may refuse rows" if definition.startswith("UNIQUE") else ""
            yield Difference(f"the index {name} on {table_name} is not known{rule and f': {rule}'}", is_harmful=False)


def _read_catalogue(tx: Connection) -> _Catalogue:
    is_sqlite = tx.dialect.name == "sqlite"
    seen = _Catalogue()
    for table, name, kind, nullable, has_default, key in tx.exec_driver_sql(
        _SQLITE_COLUMNS if is_sqlite else _POSTGRESQL_COLUMNS
    ):
        column = _Column(kind.upper(), bool(nullable), bool(has_default), int(key))
        seen.columns.setdefault(table, {})[name] = column
    for table, name, is_unique, origin, is_valid, text, columns in tx.exec_driver_sql(
        _SQLITE_INDEXES if is_sqlite else _POSTGRESQL_INDEXES
    ):
        if origin == "pk":
            continue
        definition = _normalised(text) if text else ""
        if is_unique and "WHERE" not in definition:
            seen.uniques.add((table, columns or definition.removeprefix("UNIQUE ").replace(", ", ",")))
        if text:  # SQLite keeps no words for an index that it made for a rule of the table
            seen.indexes[name] = (table, definition if is_valid else f"{definition}{INVALID}")
    return seen


def _normalised(definition: str) -> str:
    """An index in words that both databases and SQLAlchemy share: `UNIQUE a, b DESC WHERE condition`."""
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
