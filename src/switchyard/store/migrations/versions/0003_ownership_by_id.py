"""ownership by id: who owns a job, a grant, a submit token and an idempotency key is a user's id, no longer a name.

A row that is older than the user of its name belongs to an earlier user of that name, so it is given to nobody.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# The owners `local-admin` and `rainbow` are no users: their name is their id.
UPGRADE = (
    "UPDATE jobs SET owner_id = owner WHERE owner IN ('local-admin', 'rainbow')",
    """
    UPDATE jobs SET owner_id =
        (SELECT users.id FROM users WHERE users.name = jobs.owner AND users.created_us <= jobs.created_us)
    WHERE owner NOT IN ('local-admin', 'rainbow')
    """,
    """
    UPDATE idempotency SET owner = (SELECT users.id FROM users WHERE users.name = idempotency.owner)
    WHERE EXISTS (
        SELECT 1 FROM users WHERE users.name = idempotency.owner AND users.created_us <= idempotency.created_us
    )
    """,
    """
    DELETE FROM idempotency
    WHERE owner NOT IN (SELECT id FROM users) AND owner NOT IN ('local-admin', 'rainbow')
    """,
    # A user's grants were always deleted with the user.
    """
    DELETE FROM grants
    WHERE to_kind = 'user' AND NOT EXISTS (SELECT 1 FROM users WHERE users.name = grants.subject)
    """,
    """
    UPDATE grants SET subject = (SELECT users.id FROM users WHERE users.name = grants.subject)
    WHERE to_kind = 'user'
    """,
    """
    DELETE FROM submit_tokens WHERE account <> '' AND NOT EXISTS (
        SELECT 1 FROM users WHERE users.name = submit_tokens.account AND users.created_us <= submit_tokens.created_us
    )
    """,
    """
    UPDATE submit_tokens SET account = (SELECT users.id FROM users WHERE users.name = submit_tokens.account)
    WHERE account <> ''
    """,
)
DOWNGRADE = (
    """
    DELETE FROM submit_tokens
    WHERE account <> '' AND NOT EXISTS (SELECT 1 FROM users WHERE users.id = submit_tokens.account)
    """,
    """
    UPDATE submit_tokens SET account = (SELECT users.name FROM users WHERE users.id = submit_tokens.account)
    WHERE account <> ''
    """,
    """
    DELETE FROM grants
    WHERE to_kind = 'user' AND NOT EXISTS (SELECT 1 FROM users WHERE users.id = grants.subject)
    """,
    """
    UPDATE grants SET subject = (SELECT users.name FROM users WHERE users.id = grants.subject)
    WHERE to_kind = 'user'
    """,
    """
    UPDATE idempotency SET owner = (SELECT users.name FROM users WHERE users.id = idempotency.owner)
    WHERE EXISTS (SELECT 1 FROM users WHERE users.id = idempotency.owner)
    """,
)


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("owner_id", sa.Text(), nullable=True))
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.add_column(sa.Column("parent_id", sa.Text(), nullable=True))
    op.create_table(
        "submit_consents",
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", "user_id", name=op.f("pk_submit_consents")),
    )
    for statement in UPGRADE:
        op.execute(statement)


def downgrade() -> None:
    for statement in DOWNGRADE:
        op.execute(statement)
    op.drop_table("submit_consents")
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.drop_column("parent_id")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("owner_id")
