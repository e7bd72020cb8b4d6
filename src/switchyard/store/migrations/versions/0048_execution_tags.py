"""execution tags: executions are found by tags, labels, and the kind and code of their error.

Errors of executions that exist are filled in. Tags and labels are stored from now on.
"""

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "execution_tags",
        sa.Column("execution_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "kind", "key"),
    )
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("error_kind", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("error_code", sa.Text(), nullable=True))
    connection = op.get_bind()
    failed = connection.execute(sa.text("SELECT id, error FROM executions WHERE error IS NOT NULL")).all()
    for execution_id, body in failed:
        kind, code = _kind_and_code(bytes(body))
        statement = sa.text("UPDATE executions SET error_kind = :kind, error_code = :code WHERE id = :id")
        connection.execute(statement, {"kind": kind, "code": code, "id": execution_id})


def downgrade() -> None:
    op.drop_table("execution_tags")
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.drop_column("error_code")
        batch_op.drop_column("error_kind")


def _kind_and_code(body: bytes) -> tuple[str, str]:
    """A database with executions was written by a server that has flyteidl."""
    from flyteidl.core import execution_pb2

    error = execution_pb2.ExecutionError.FromString(body)
    return execution_pb2.ExecutionError.ErrorKind.Name(error.kind), error.code
