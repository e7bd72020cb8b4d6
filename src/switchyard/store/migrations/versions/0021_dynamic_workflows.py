"""dynamic workflows: what the attempts of dynamic tasks made, compiled."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "execution_dynamics",
        sa.Column("execution_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("closure", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "node_id", "attempt"),
    )


def downgrade() -> None:
    op.drop_table("execution_dynamics")
