"""entities: registered tasks, workflows and launch plans of Flyte's, their contents and names."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "entity_contents",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "entities",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("workflow_project", sa.Text(), nullable=False),
        sa.Column("workflow_domain", sa.Text(), nullable=False),
        sa.Column("workflow_name", sa.Text(), nullable=False),
        sa.Column("workflow_version", sa.Text(), nullable=False),
        sa.Column("schedule_type", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "project", "domain", "name", "version"),
    )
    with op.batch_alter_table("entities", schema=None) as batch_op:
        batch_op.create_index("ix_entities_created", ["kind", "project", "domain", "created_us"], unique=False)
        batch_op.create_index(
            "uq_entities_active",
            ["kind", "project", "domain", "name"],
            unique=True,
            sqlite_where=sa.text("is_active"),
            postgresql_where=sa.text("is_active"),
        )
    op.create_table(
        "entity_names",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("name_description", sa.Text(), nullable=False),
        sa.Column("name_state", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "project", "domain", "name"),
    )
    op.create_table(
        "entity_usage",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("entities", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project"),
    )


def downgrade() -> None:
    op.drop_table("entity_usage")
    op.drop_table("entity_names")
    op.drop_table("entities")
    op.drop_table("entity_contents")
