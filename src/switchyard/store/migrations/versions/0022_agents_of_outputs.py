"""agents of outputs: which agent has the output files of an attempt; and when unused uploads of a user were released.

Outputs from before have no agent. Their agent names itself with its next message about them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

IS_UPLOADING = sa.text("state = 'uploading'")


def upgrade() -> None:
    with op.batch_alter_table("file_outputs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("agent_id", sa.Text(), nullable=True))
        batch_op.create_index(
            "ix_file_outputs_uploading",
            ["cluster_id", "agent_id"],
            unique=False,
            sqlite_where=IS_UPLOADING,
            postgresql_where=IS_UPLOADING,
        )
    with op.batch_alter_table("file_usage", schema=None) as batch_op:
        batch_op.add_column(sa.Column("released_us", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("file_usage", schema=None) as batch_op:
        batch_op.drop_column("released_us")
    with op.batch_alter_table("file_outputs", schema=None) as batch_op:
        batch_op.drop_index("ix_file_outputs_uploading", sqlite_where=IS_UPLOADING, postgresql_where=IS_UPLOADING)
        batch_op.drop_column("agent_id")
