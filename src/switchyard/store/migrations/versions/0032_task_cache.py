"""task cache: outputs of cached tasks, reservations of serialized ones, and the nodes that wait for them."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("execution_nodes", schema=None) as batch_op:
        batch_op.add_column(sa.Column("cache_status", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("cache_key", sa.LargeBinary(), nullable=True))
        batch_op.add_column(sa.Column("cache_source", sa.Text(), nullable=True))
    op.create_table(
        "task_cache",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("outputs", sa.LargeBinary(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("stored_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_task_cache_stored", "task_cache", ["project", "stored_us"])
    op.create_table(
        "cache_reservations",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("execution_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_cache_reservations_node", "cache_reservations", ["execution_id", "node_id"])
    op.create_table(
        "cache_waits",
        sa.Column("execution_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "node_id"),
    )


def downgrade() -> None:
    op.drop_table("cache_waits")
    op.drop_table("cache_reservations")
    op.drop_table("task_cache")
    with op.batch_alter_table("execution_nodes", schema=None) as batch_op:
        for name in ("cache_source", "cache_key", "cache_status"):
            batch_op.drop_column(name)
