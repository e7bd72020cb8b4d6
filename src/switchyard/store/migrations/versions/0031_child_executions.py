"""child executions: which node of which execution started an execution, and whether it waits for its end."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

IS_AWAITED = sa.text("is_awaited")


def upgrade() -> None:
    with op.batch_alter_table("executions", schema=None) as batch_op:
        for name in ("parent_id", "parent_node", "root_id"):
            batch_op.add_column(sa.Column(name, sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("is_awaited", sa.Boolean(), nullable=True))
        for index, column in (("ix_executions_awaited", "parent_id"), ("ix_executions_root", "root_id")):
            batch_op.create_index(index, [column], sqlite_where=IS_AWAITED, postgresql_where=IS_AWAITED)


def downgrade() -> None:
    with op.batch_alter_table("executions", schema=None) as batch_op:
        for index in ("ix_executions_root", "ix_executions_awaited"):
            batch_op.drop_index(index, sqlite_where=IS_AWAITED, postgresql_where=IS_AWAITED)
        for name in ("is_awaited", "root_id", "parent_node", "parent_id"):
            batch_op.drop_column(name)
