"""signals: gates of executions, what they wait for and until when."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("execution_nodes", schema=None) as batch_op:
        batch_op.add_column(sa.Column("wake_us", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("signal_id", sa.Text(), server_default="", nullable=False))
        batch_op.create_index(
            "ix_execution_nodes_wake",
            ["wake_us"],
            unique=False,
            sqlite_where=sa.text("wake_us IS NOT NULL"),
            postgresql_where=sa.text("wake_us IS NOT NULL"),
        )
    op.create_table(
        "execution_signals",
        sa.Column("execution_id", sa.Text(), nullable=False),
        sa.Column("signal_id", sa.Text(), nullable=False),
        sa.Column("type", sa.LargeBinary(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("set_us", sa.BigInteger(), nullable=True),
        sa.Column("set_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "signal_id"),
    )


def downgrade() -> None:
    op.drop_table("execution_signals")
    with op.batch_alter_table("execution_nodes", schema=None) as batch_op:
        batch_op.drop_index("ix_execution_nodes_wake")
        batch_op.drop_column("signal_id")
        batch_op.drop_column("wake_us")
