"""maps: map nodes of executions, and their elements."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0022"
branch_labels = None
depends_on = None

LIVE_MAP = sa.text("phase <> 'CLOSED'")


def upgrade() -> None:
    with op.batch_alter_table("execution_nodes", schema=None) as batch_op:
        batch_op.add_column(sa.Column("is_array", sa.Boolean(), nullable=True))
    op.create_table(
        "execution_maps",
        sa.Column("execution_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("minimum", sa.Integer(), nullable=False),
        sa.Column("parallelism", sa.Integer(), nullable=False),
        sa.Column("runs_all", sa.Boolean(), nullable=False),
        sa.Column("is_stopped", sa.Boolean(), nullable=False),
        sa.Column("node", sa.LargeBinary(), nullable=False),
        sa.Column("template", sa.LargeBinary(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("indexes", sa.Text(), nullable=False),
        sa.Column("seen", sa.Integer(), nullable=False),
        sa.Column("succeeded", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("output_bytes", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.LargeBinary(), nullable=True),
        sa.Column("changes", sa.Integer(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "node_id"),
    )
    with op.batch_alter_table("execution_maps", schema=None) as batch_op:
        batch_op.create_index(
            "ix_execution_maps_live",
            ["execution_id"],
            unique=False,
            sqlite_where=LIVE_MAP,
            postgresql_where=LIVE_MAP,
        )
    op.create_table(
        "execution_map_parts",
        sa.Column("execution_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("states", sa.LargeBinary(), nullable=False),
        sa.Column("results", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "node_id", "part"),
    )


def downgrade() -> None:
    op.drop_table("execution_map_parts")
    op.drop_table("execution_maps")
    with op.batch_alter_table("execution_nodes", schema=None) as batch_op:
        batch_op.drop_column("is_array")
