"""makers of tokens: which user made a join token or a submit token, and with which token of theirs.

Rows from before have no maker: they hold as long as they did.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COLUMNS = {
    "invites": (("maker_id", sa.Text()), ("parent_id", sa.Text())),
    "submit_tokens": (("maker_id", sa.Text()), ("parent_id", sa.Text()), ("expires_us", sa.BigInteger())),
}


def upgrade() -> None:
    for table, columns in COLUMNS.items():
        with op.batch_alter_table(table, schema=None) as batch_op:
            for name, type_ in columns:
                batch_op.add_column(sa.Column(name, type_, nullable=True))


def downgrade() -> None:
    for table, columns in COLUMNS.items():
        with op.batch_alter_table(table, schema=None) as batch_op:
            for name, _ in reversed(columns):
                batch_op.drop_column(name)
