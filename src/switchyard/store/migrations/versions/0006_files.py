"""files: stored objects, sealed trees, and what jobs need of them."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "file_objects",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("used_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "file_holders",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("used_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "owner"),
    )
    op.create_table(
        "file_trees",
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("indexes", sa.Text(), nullable=False),
        sa.Column("sealed_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("root"),
    )
    op.create_table(
        "file_tree_owners",
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("used_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("root", "owner"),
    )
    op.create_index("ix_file_tree_owners_owner", "file_tree_owners", ["owner"])
    op.create_index("ix_file_tree_owners_used", "file_tree_owners", ["used_us"])
    op.create_table(
        "file_tree_parts",
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("first", sa.LargeBinary(), nullable=False),
        sa.Column("last", sa.LargeBinary(), nullable=False),
        sa.Column("digests", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("root", "first"),
    )
    op.create_table(
        "file_refs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "root", "kind"),
    )
    op.create_index("ix_file_refs_root", "file_refs", ["root"])
    op.create_index("ix_file_refs_project", "file_refs", ["project", "root"])
    _create_outputs()


def _create_outputs() -> None:
    op.create_table(
        "file_outputs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("task", sa.Integer(), nullable=True),
        sa.Column("cluster_id", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=True),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("missing", sa.Text(), nullable=False),
        sa.Column("skipped", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "fence"),
    )
    op.create_index("ix_file_outputs_task", "file_outputs", ["job_id", "task"])
    op.create_table(
        "file_removals",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("is_done", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "file_usage",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner"),
    )


def downgrade() -> None:
    for table in (
        "file_usage",
        "file_removals",
        "file_outputs",
        "file_refs",
        "file_tree_parts",
        "file_tree_owners",
        "file_trees",
        "file_holders",
        "file_objects",
    ):
        op.drop_table(table)
