"""owners of inquiries: which user asked a cluster for a quote.

Open inquiries from before belong to nobody. They end within seconds.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("quote_asks", schema=None) as batch_op:
        batch_op.add_column(sa.Column("owner", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("quote_asks", schema=None) as batch_op:
        batch_op.drop_column("owner")
