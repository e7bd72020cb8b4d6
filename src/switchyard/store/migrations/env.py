"""Alembic's entry: one tree of migrations for both databases, run on the connection it is handed."""

from alembic import context

from switchyard.store.feature import all_tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=all_tables(),
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
