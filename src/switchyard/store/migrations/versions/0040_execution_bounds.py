"""execution bounds: live executions are counted, ended ones are removed in pieces, and one cluster takes all nodes.

Live executions from before have no cluster. They get one with their next node.
"""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0032"
branch_labels = None
depends_on = None

IS_LIVE, HAS_ENDED = sa.text("ended_us IS NULL"), sa.text("ended_us IS NOT NULL")
INDEXES = (
    ("ix_executions_live_owner_id", "owner_id", IS_LIVE),
    ("ix_executions_live_project", "project", IS_LIVE),
    ("ix_executions_ended", "ended_us", HAS_ENDED),
)


def upgrade() -> None:
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("mode", sa.Text(), nullable=False, server_default="MANUAL"))
        batch_op.add_column(sa.Column("is_removed", sa.Boolean(), nullable=False, server_default=sa.false()))
        batch_op.add_column(sa.Column("cluster", sa.Text(), nullable=False, server_default=""))
        for name, column, where in INDEXES:
            batch_op.create_index(name, [column], unique=False, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    with op.batch_alter_table("executions", schema=None) as batch_op:
        for name, _, where in INDEXES:
            batch_op.drop_index(name, sqlite_where=where, postgresql_where=where)
        batch_op.drop_column("cluster")
        batch_op.drop_column("is_removed")
        batch_op.drop_column("mode")
