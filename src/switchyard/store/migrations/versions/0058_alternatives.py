"""Which set of resources a job with alternatives has. Jobs from before have one set."""

import sqlalchemy as sa
from alembic import op

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("alternatives", sa.Text(), nullable=True))
    op.add_column("ranges", sa.Column("alternative", sa.Integer(), nullable=True))
    op.add_column("attempts", sa.Column("alternative", sa.Integer(), nullable=True))


def downgrade() -> None:
    for table, column in (("attempts", "alternative"), ("ranges", "alternative"), ("jobs", "alternatives")):
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.drop_column(column)
