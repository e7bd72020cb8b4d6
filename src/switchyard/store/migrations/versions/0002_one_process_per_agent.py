"""one process per agent: which process has an agent's place, and which other one asked for it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("agents", schema=None) as batch_op:
        batch_op.add_column(sa.Column("starts", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("writes", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("place", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("rival", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("agents", schema=None) as batch_op:
        for column in ("rival", "place", "writes", "starts"):
            batch_op.drop_column(column)
